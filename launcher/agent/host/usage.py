"""Measure this host's utilization periodically: cores, memory, network, and GPUs if `nvidia-smi` exists."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ..base.connection import Connection

if TYPE_CHECKING:
    import subprocess

    from ..base.from_agent import Device

INTERVAL = 10.0  # seconds between two measurements
FIRST = 2.0  # seconds from the start of the workers to the first measurement
LONGEST = 1 << 16  # most bytes of nvidia-smi's answer that are read
QUERY = ("--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
MEBIBYTE = 1 << 20
Counters = Tuple[float, int, int, int, int]
"""A time, and four counters at that time: ticks of all cores, idle ticks, bytes received, bytes sent."""


class Usage:
    """Sends the launcher a `usage` frame every ten seconds while workers run, without values that cannot be measured."""

    def __init__(self) -> None:
        self.due = 0.0
        self.before: Optional[Counters] = None
        self.query: Optional[subprocess.Popen[bytes]] = None
        self.devices: List[Device] = []

    def send(self, connection: Connection) -> None:
        """Send a measurement if one is due. The first call only starts counting."""
        now = time.monotonic()
        if connection.offsets is None or connection.unsent or now < self.due:
            return
        before, self.before = self.before, counters(now)
        self.due = now + (FIRST if before is None else INTERVAL)
        self.query_devices()
        if before is not None and self.before is not None:
            frame: Any = dict(rates(before, self.before), type="usage", devices=self.devices, **memory())
            connection.send(frame)

    def query_devices(self) -> None:
        """Read the answer of the last nvidia-smi if it has ended, and start another. Does not wait."""
        if self.query is not None:
            if self.query.poll() is None:
                return
            assert self.query.stdout is not None
            with self.query.stdout as answer:
                self.devices = parse_devices(answer.read(LONGEST).decode("utf-8", "replace"))
            self.query = None
        program = nvidia_smi()
        if program is not None:
            import subprocess  # here, because few agents have a GPU

            null = subprocess.DEVNULL
            try:
                self.query = subprocess.Popen([program, *QUERY], stdin=null, stdout=subprocess.PIPE, stderr=null)
            except OSError:
                pass


def counters(now: float) -> Optional[Counters]:
    """Return the machine's counters; None if /proc does not have them."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        with open("/proc/net/dev") as file:
            rows = [line.partition(":") for line in file.readlines()[2:]]
        cards = [row.split() for name, _, row in rows if name.strip() != "lo"]
        received, sent = (sum(int(card[column]) for card in cards) for column in (0, 8))
        return now, sum(ticks), ticks[3] + ticks[4], received, sent
    except (OSError, ValueError, IndexError):
        return None


def rates(before: Counters, after: Counters) -> Dict[str, float]:
    """Return the fraction of all cores used between two samples, and the network traffic in bytes per second."""
    seconds, ticks, idle, received, sent = (max(0.0, float(b - a)) for a, b in zip(before, after))
    return {
        "cpu": round(1 - min(1.0, idle / ticks), 3) if ticks else 0.0,
        "received": round(received / seconds) if seconds else 0,
        "sent": round(sent / seconds) if seconds else 0,
    }


def memory() -> Dict[str, int]:
    """Return the memory in use and in total, in bytes; 0 if unknown."""
    values = {}
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    values[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    total = values.get("MemTotal", 0)
    return {"memory": max(0, total - values.get("MemAvailable", total)), "memory_total": total}


def nvidia_smi() -> Optional[str]:
    """Return the path of nvidia-smi; None if it is not installed."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    paths = (os.path.join(folder, "nvidia-smi") for folder in folders if os.path.isabs(folder))
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def parse_devices(answer: str) -> List[Device]:
    """Return a row for each GPU: `busy` from 0 to 1, and bytes of memory in use and in total; None: unknown."""
    rows: List[Device] = []
    for line in answer.splitlines():
        busy, used, total = [*(number(word) for word in line.split(",")), None, None, None][:3]
        rows.append(
            {
                "busy": None if busy is None else busy / 100,
                "memory": None if used is None else used * MEBIBYTE,
                "memory_total": None if total is None else total * MEBIBYTE,
            }
        )
    return rows


def number(word: str) -> Optional[int]:
    word = word.strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) < 12 else None
