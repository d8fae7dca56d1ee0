"""The launcher's part of fault injection: faults by time, lost links, and which have struck."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from podrun.launcher.attempt.cause import from_exit
from podrun.launcher.attempt.fault_injection import FaultInjection
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host
from podrun.launcher.rundir.events import Event
from podrun.launcher.transport.base import Channel, Transport
from podrun.runtime.contract import Phase

from ..attempts import exit_of

KILL = "kill:host=host-1,process=1@seconds=0.01"
EXIT = "exit:host=host-0,process=0,code=0@step=3"
LINK = "link_down:host=host-1,process=1,seconds=600@step=5"
HOST = Host("host-1", "host-1")


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)


class Line(Channel):
    """Wait, as a connection, until it is closed."""

    is_open = True

    def send(self, data: bytes) -> None: ...

    def finish(self) -> None: ...

    def receive(self) -> bytes:
        return b""

    def close(self) -> None:
        self.is_open = False

    def stderr_tail(self) -> str:
        return ""

    def exit_code(self) -> int | None:
        return None


class Lines(Transport):
    def open(self, host: Host, argv: Sequence[str]) -> Line:
        return Line()


def started(process: int, pid: int) -> Event:
    return {"event": "host", "phase": "started", "host": f"host-{process}", "process": process, "pid": pid}


def test_a_fault_that_a_worker_reports_has_struck() -> None:
    injection = FaultInjection([EXIT, LINK], Recorder(), Lines())
    injection.event({"event": "note", "message": "rehearsal", "injected": EXIT})
    assert injection.left == (LINK,)
    assert FaultInjection([EXIT, LINK], Recorder(), Lines(), {LINK}).left == (EXIT,)


def test_a_process_is_killed_at_its_time() -> None:
    """Once in a run: the process that is started next lives."""
    recorder = Recorder()
    injection = FaultInjection([KILL], recorder, Lines())
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeper) as process, injection.during(attempt=0):
        injection.event(started(1, process.pid))
        assert process.wait(60) == -signal.SIGKILL
    assert recorder.events[-1]["injected"] == KILL
    assert injection.left == ()


def test_a_kill_that_was_ordered_is_not_somebodys() -> None:
    """Only of the attempt in which it struck, and of the process that it struck."""
    injection = FaultInjection([KILL], Recorder(), Lines())
    killed = [
        from_exit(f"host-{n}", exit_of(n, -signal.SIGKILL, out_of_memory=False), 4, Phase.TRAIN) for n in range(2)
    ]
    with injection.during(attempt=0):
        injection.event({"event": "note", "message": "rehearsal", "injected": KILL, "host": "host-1", "process": 1})
    ends = [injection.explain(Outcome(137, failed)).cause for failed in killed]
    assert ends[0] == killed[0]
    assert ends[1] is not None and ends[1].what == f"was ended by SIGKILL after step 4 (by podrun: --inject {KILL})"
    with injection.during(attempt=1):
        pass
    assert injection.explain(Outcome(137, killed[1])).cause == killed[1]


def test_an_ended_process_is_not_struck() -> None:
    injection = FaultInjection([KILL.replace("0.01", "3600")], Recorder(), Lines())
    with injection.during(attempt=0):
        injection.event(started(1, 1))
        injection.event({"event": "exit", "host": "host-1", "process": 1, "code": 0})
    assert len(injection.left) == 1


def test_a_link_is_cut_and_stays_down() -> None:
    recorder = Recorder()
    injection = FaultInjection([LINK], recorder, Lines())
    line, other = injection.transport.open(HOST, ["run"]), injection.transport.open(Host("host-0", "host-0"), ["run"])
    assert isinstance(line, Line) and isinstance(other, Line)
    with injection.during(attempt=0):
        injection.event(started(1, 1))
        injection.event({"event": "step", "step": 4, "process": 1})
        assert injection.left == (LINK,)
        injection.event({"event": "step", "step": 6, "process": 1})
    assert injection.left == ()
    injection.transport.cut("host-1", 600)  # as the injection does in a thread
    assert not line.is_open and other.is_open
    with pytest.raises(HostError, match="its link is down"):
        injection.transport.open(HOST, ["attach"])
    assert injection.transport.open(Host("host-0", "host-0"), ["attach"])
