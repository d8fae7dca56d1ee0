"""Time from a fault to the line that names it: a worker that is killed, one that hangs, a host that is missing at the start.

    python benchmarks/detection.py [--runs 3] [--ssh]

Every case is a run of its own on two hosts. *named* is the time until the line that names host and process, less the limit
for which podrun waits by its settings; *end* is the time until podrun has ended, when nothing is left, less that limit. When
a hang is named, the stacks of all processes must be in the logs. `--ssh` adds a host that does not answer, in network
namespaces, which needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from child import ended, lines_of
from setting import print_setting

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.conftest import Sandbox, make_sandbox
from tests.hosts import Hosts
from tests.ssh.pod import PodSandbox

STALL, START, CONNECT = (
    5.0,
    20.0,
    15.0,
)  # seconds: the limits of the cases; the last is that of all tries to reach a host
SHORT_LIMIT = 240.0
VICTIM = "host-1 (process 1)"
Event = dict[str, Any]


@dataclass
class Case:
    """A fault, and how soon podrun should name it."""

    name: str
    limit: float
    """Seconds that podrun waits by its settings."""
    target: float
    """Seconds beyond the limit within which the fault should be named."""
    measure: Callable[[], tuple[float, float]]
    """Return the seconds until the line, and until the end of podrun, from the fault on."""
    named: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ssh", action="store_true", help="also a host that does not answer")
    options = parser.parse_args()
    print_setting()
    cases = [
        Case("SIGKILL of a worker", 0.0, 1.0, killed),
        Case("hang in a lock", STALL, 2.0, hangs),
        Case("SIGSTOP of a worker", STALL, 2.0, stopped),
        Case("a worker that does not join", START, 5.0, not_joined),
    ]
    with ExitStack() as stack:
        if options.ssh:
            hosts = stack.enter_context(closing(Hosts(2)))
            cases.append(Case("a host that does not answer", CONNECT, 5.0, partial(unreachable, hosts)))
        run_all(cases, options.runs)
    print_table(cases)


def run_all(cases: list[Case], runs: int) -> None:
    for number in range(runs):
        for case in cases:
            named, ended = case.measure()
            case.named.append(named - case.limit)
            case.ended.append(ended - case.limit)
            print(f"run {number}: {case.name}: named {case.named[-1]:.2f} s, end {case.ended[-1]:.2f} s", flush=True)


def print_table(cases: list[Case]) -> None:
    print(f"\n{'seconds beyond the limit':30}{'limit':>7}{'target':>8}{'median':>8}{'longest':>9}{'end':>7}")
    for case in cases:
        numbers = (statistics.median(case.named), max(case.named), statistics.median(case.ended))
        marks = "" if max(case.named) <= case.target else "   too late"
        print(
            f"{case.name:30}{case.limit:7g}{case.target:8g}{numbers[0]:8.2f}{numbers[1]:9.2f}{numbers[2]:7.2f}{marks}"
        )


class Watched:
    """A run of podrun, its events and the times at which they came."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[Event] = []
        self._lines = lines_of(process)

    def until(self, wanted: Callable[[Event], bool]) -> float:
        """Return the time at which a wanted event came. Raises SystemExit if podrun ends first, or nothing comes."""
        end = time.monotonic() + SHORT_LIMIT
        while (line := self._lines.get(timeout=max(0.1, end - time.monotonic()))) is not None:
            now = time.monotonic()
            self.events.append(json.loads(line))
            if wanted(self.events[-1]):
                return now
        raise SystemExit(f"podrun has ended before; its last events: {self.events[-3:]}")

    def until_told(self, words: str) -> float:
        """Return the time of the first event that has these words."""
        return self.until(lambda e: words in json.dumps(e))

    def signal(self, number: signal.Signals) -> float:
        """Send a signal to process 1, and return the time."""
        started = [e for e in self.events if e["event"] == "host" and e["phase"] == "started"]
        os.kill(next(e["pid"] for e in started if e["process"] == 1), number)
        return time.monotonic()

    def end(self) -> float:
        self.process.wait(SHORT_LIMIT)
        return time.monotonic()

    def check_stacks(self) -> None:
        """Raise SystemExit unless the logs of all processes have stacks by now, which come by another way than events."""
        folder = Path(next(e["logs"] for e in self.events if e["event"] == "start"))
        logs = [path for path in folder.glob("host-*.log") if "most recent call first" in path.read_text()]
        if len(logs) < 2:
            raise SystemExit(f"stacks are in {len(logs)} of 2 logs")


@contextmanager
def running(*arguments: str) -> Iterator[Watched]:
    """Start a job that goes on for long, on a simulated pod of two hosts."""
    with tempfile.TemporaryDirectory(prefix="detection-") as folder:
        job = ["small.yaml", "steps=100000000", f"launch.stall_timeout={STALL:g}", *arguments]
        with watched(make_sandbox(Path(folder)), "--simulate", "--slice", "cpu-2x1", *job) as run:
            yield run


@contextmanager
def watched(sandbox: Sandbox, *arguments: str) -> Iterator[Watched]:
    process = sandbox.start(*arguments)
    threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would hold podrun up
    with ended(process):
        yield Watched(process)


def killed() -> tuple[float, float]:
    """Kill process 1 in its steps."""
    with running() as run:
        run.until(lambda e: e["event"] == "step" and e["step"] > 20)
        struck = run.signal(signal.SIGKILL)
        named = run.until(lambda e: e["event"] == "exit" and e["process"] == 1)
        return named - struck, run.end() - struck


def stopped() -> tuple[float, float]:
    """Stop process 1 in its steps."""
    with running() as run:
        run.until(lambda e: e["event"] == "step" and e["step"] > 20)
        struck = run.signal(signal.SIGSTOP)
        named = run.until_told(f"{VICTIM}: no progress")
        run.check_stacks()
        return named - struck, run.end() - struck


def hangs() -> tuple[float, float]:
    """Let process 1 wait for a lock. Its own clock, which is this machine's, says since when."""
    with running("--inject", "hang:process=1@step=20") as run:
        run.until(lambda e: "injected" in e)
        struck = run.events[-1]["time"] + time.monotonic() - time.time()
        named = run.until_told(f"{VICTIM}: no progress")
        run.check_stacks()
        return named - struck, run.end() - struck


def not_joined() -> tuple[float, float]:
    """Stop process 1 as soon as it has started, before it can say anything."""
    with running(f"launch.start_timeout={START:g}") as run:
        started = run.until(lambda e: e["event"] == "host" and e["phase"] == "started" and e["process"] == 1)
        run.signal(signal.SIGSTOP)
        return run.until_told(f"{VICTIM}: did not say anything") - started, run.end() - started


def unreachable(hosts: Hosts) -> tuple[float, float]:
    """Let a firewall drop all that is sent to a host, before podrun starts."""
    with tempfile.TemporaryDirectory(prefix="detection-") as folder:
        sandbox = PodSandbox(make_sandbox(Path(folder)).path, hosts)
        option = sandbox.write_pod(["h0", "h1"])
        hosts.cut("h1")
        try:
            with watched(sandbox, option, "-w", "work", "small.yaml") as run:
                began = run.until(lambda e: e["event"] == "host" and e["phase"] == "reach" and e["host"] == "h1")
                return run.until_told("h1: ") - began, run.end() - began
        finally:
            hosts.restore()


if __name__ == "__main__":
    main()
