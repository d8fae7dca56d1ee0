"""Send the launcher the workers' progress records and, on request, the state of workers that may be stuck."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Dict, List, Optional

from ..base.connection import Connection
from ..base.processes import children_in_namespace_of, descendants, mount_own_proc, stat_fields
from .worker import Worker

if TYPE_CHECKING:
    import subprocess

    from ..base.from_agent import Dumped, Stuck
    from ..base.to_agent import WorkerSpec

INTERVAL = 1.0  # seconds between two reads of the progress records
RECORD_SIZE = 128  # bytes of a progress record that are sent; the launcher parses them
PRINT_TIME = 0.5  # seconds for processes to print their stacks
POLL = 0.1  # seconds between two checks whether py-spy has ended
NATIVE_TIMEOUT = 8.0  # seconds for py-spy to read the stacks of native code
CATCHES = 1 << (signal.SIGUSR1 - 1)  # bit of SIGUSR1 in SigCgt of /proc/PID/status
STOPPED = ("T", "t")  # by a signal, or by a debugger


class RecordSender:
    """Sends the progress records that have changed since they were last sent."""

    def __init__(self) -> None:
        self.due = 0.0  # when the records are read next
        self.sent: Dict[int, str] = {}
        self.sent_to: Optional[Connection] = None

    def send(self, workers: List[Worker], connection: Connection) -> None:
        """Send changed progress records, at most once a second. Most user programs have none."""
        now = time.monotonic()
        if connection.offsets is None or connection.unsent or now < self.due:
            return
        self.due = now + INTERVAL
        if connection is not self.sent_to:
            self.sent_to, self.sent = connection, {}
        records = {w.process: read_record(w.spec["beat"]) for w in workers if w.running}
        changed = {process: record for process, record in records.items() if record != self.sent.get(process, "")}
        if changed:
            self.sent.update(changed)
            texts = {str(process): record for process, record in changed.items()}
            connection.send({"type": "progress", "beats": texts, "now": now})


def read_record(path: str) -> str:
    """Return a progress record as hexadecimal digits; an empty text if its file is missing or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # do not wait for the writer of a pipe
    except OSError:
        return ""
    try:
        return os.read(fd, RECORD_SIZE).hex()
    except OSError:
        return ""
    finally:
        os.close(fd)


class StackDump:
    """Makes all workers print their stacks, and measures their CPU use meanwhile."""

    def __init__(self, workers: List[Worker], isolated: bool) -> None:
        self.workers = [w for w in workers if w.running]
        self.states = {w.process: state_of(w.pid) for w in self.workers}
        self.before = self.cpu_seconds()
        self.began = time.monotonic()
        self.reported = False  # a first result was returned
        self.over = False  # the last one was
        self.spies = [spy for w in self.workers for spy in [start_spy(w, isolated)] if spy is not None]
        for pid in descendants():
            print_stacks(pid)

    def seconds_left(self) -> float:
        """Return the seconds after which to call `result` again."""
        return max(POLL, self.began + PRINT_TIME - time.monotonic())

    def result(self) -> Optional[Dumped]:
        """Return a `dumped` frame when the stacks are printed, another one when py-spy has ended, and None in between."""
        passed = time.monotonic() - self.began
        more = passed < NATIVE_TIMEOUT and any(spy.poll() is None for spy in self.spies)
        if passed < PRINT_TIME or (more and self.reported):
            return None
        self.reported = True
        self.over = not more
        for spy in self.spies:
            if self.over and spy.poll() is None:
                spy.kill()
        after = self.cpu_seconds()
        processes: List[Stuck] = [
            {
                "process": w.process,
                "state": self.states[w.process],
                "load": round((after[w.process] - self.before[w.process]) / passed, 2),
            }
            for w in self.workers
        ]
        return {"type": "dumped", "processes": processes, "more": more}

    def cpu_seconds(self) -> Dict[int, float]:
        return {w.process: cpu_seconds(w.pid) for w in self.workers}


def state_of(pid: Optional[int]) -> str:
    """Return the state letter that `ps` shows: T for stopped, D for waiting for a disk; empty if the process is gone."""
    try:
        return stat_fields(pid or 0)[0].decode()
    except OSError:
        return ""


def cpu_seconds(pid: Optional[int]) -> float:
    try:
        fields = stat_fields(pid or 0)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def print_stacks(pid: int) -> None:
    """Send SIGUSR1 to a process that has a handler for it, which prints its stacks, and continue it if it is stopped."""
    try:
        if int(status_of(pid, b"SigCgt"), 16) & CATCHES:
            os.kill(pid, signal.SIGUSR1)
            if state_of(pid) in STOPPED:
                os.kill(pid, signal.SIGCONT)
    except (OSError, ValueError, StopIteration):
        pass


def status_of(pid: Optional[int], name: bytes) -> bytes:
    """Return the last word of the line `name` of /proc/PID/status. Raises OSError or StopIteration."""
    with open("/proc/%d/status" % (pid or 0), "rb") as file:
        return next(line.split()[-1] for line in file if line.startswith(name + b":"))


def start_spy(worker: Worker, isolated: bool) -> "Optional[subprocess.Popen[bytes]]":
    """Start py-spy, which appends the worker's native stacks to its output. Returns None if it is not installed or fails."""
    spy = find_spy(worker.spec)
    if spy is None:
        return None
    import subprocess  # here, because few agents need it

    try:
        pid = int(status_of(worker.pid, b"NSpid"))  # in the workers' PID namespace, in which py-spy runs too
        with open(worker.spec["output"], "ab") as out, children_in_namespace_of(worker.pid or 0):
            return subprocess.Popen(
                [spy, "dump", "--native", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=mount_own_proc if isolated else None,
            )
    except (OSError, ValueError, StopIteration, subprocess.SubprocessError):
        return None


def find_spy(spec: WorkerSpec) -> Optional[str]:
    """Return the path of py-spy, from the folder of the worker's Python or from PATH; None if it is not installed."""
    folders = [os.path.dirname(spec["argv"][0]), *os.environ.get("PATH", "").split(os.pathsep)]
    paths = [os.path.join(folder, "py-spy") for folder in folders if os.path.isabs(folder)]
    return next((path for path in paths if os.access(path, os.X_OK)), None)
