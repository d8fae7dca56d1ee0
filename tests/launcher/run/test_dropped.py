"""A connection that drops at any moment of a restart costs nothing: no failure is counted, and no host is blamed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.attempt import heartbeat
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.remote import session
from podrun.launcher.run import attempts as attempts
from podrun.launcher.run.attempts import run_attempts
from podrun.launcher.rundir.runs import Recorder, RunDirectory
from podrun.launcher.transport.process_channel import ProcessChannel
from podrun.launcher.view.console import NoConsole
from podrun.runtime.config import Launch

from ...hosts import wait_until
from ...tiers import mostly_long
from ..attempts import Recorded

pytestmark = pytest.mark.timeout(120)

ONCE = 'test -e "$0" && exit; test "$PODRUN_PROCESS_ID" = 0 && exec sleep 60; touch "$0"; exit 3'
"""Process 1 fails at its first start, and only then."""
MOMENTS = {
    "stop": (0, "exit", ""),
    "confirm": (0, "host", "stopped"),
    "kept": (0, "restart", ""),
    "plan": (1, "start", ""),
    "hello": (1, "host", "hello"),
    "ready": (1, "host", "ready"),
    "started": (1, "host", "started"),
}
"""Attempt, event and phase at which the connection drops, from the stop of one attempt to the start of the next."""


class Moments(Recorder):
    """A record whose writer is struck once, by `strike`, at the events of one moment."""

    moment: tuple[int, str, str]
    strike: Any
    events: list[dict[str, Any]]

    def event(self, event: dict[str, Any]) -> None:
        super().event(event)
        self.events.append(event)
        attempt = sum(e["event"] == "start" for e in self.events) - 1
        if (attempt, event["event"], event.get("phase", "")) == self.moment and self.strike:
            strike, type(self).strike = self.strike, None
            strike()


class Rig:
    """A run of a program on two simulated hosts that is started again once, and the connections to them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pod = replace(simulated_pod(parse_slice("cpu-2x1")), home=str(folder / "hosts"), python=sys.executable)
        self.transport = Recorded(self.pod)
        command = ("sh", "-c", ONCE, str(folder / "failed"))
        self.spec = RunSpec("20260101-000000-abcd", self.pod, Program(command, Launch(max_restarts=1)), folder, folder)
        self.directory = RunDirectory.create(self.spec)
        self.events: list[dict[str, Any]] = []
        monkeypatch.setattr(attempts, "Recorder", Moments)
        monkeypatch.setattr(Moments, "events", self.events, raising=False)
        self._patch = monkeypatch

    def run(self, moment: str, strike: Any) -> int:
        self._patch.setattr(Moments, "moment", MOMENTS[moment], raising=False)
        self._patch.setattr(Moments, "strike", staticmethod(strike), raising=False)
        return run_attempts(self.spec, self.directory, NoConsole(), transport=self.transport)

    def connections(self, host: str) -> list[ProcessChannel]:
        return self.transport.channels[host]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def processes(self) -> list[int]:
        """Return the processes of the run, agents included."""
        mark = str(self.pod.home).encode()
        pids = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if (
                    folder.name.isdigit()
                    and mark in (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                ):
                    pids.append(int(folder.name))
        return [pid for pid in pids if pid != os.getpid()]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(session, "SILENCE", 1.0)
    monkeypatch.setattr(heartbeat, "_EVERY", 0.25)
    rig = Rig(tmp_path, monkeypatch)
    yield rig
    for pid in rig.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


STRIKES = {"both end": (signal.SIGKILL, ("host-0", "host-1")), "one falls silent": (signal.SIGSTOP, ("host-1",))}


@pytest.mark.parametrize(
    ("moment", "number", "hosts"),
    mostly_long(
        ((moment, *strike) for strike in STRIKES.values() for moment in MOMENTS),
        quick=lambda number, case: number in (0, 4),
        ci=lambda number, case: number % 2 == 0,
    ),
    ids=[f"{strike}-{moment}" for strike in STRIKES for moment in MOMENTS],
)
def test_a_connection_drops_while_a_run_is_started_again(
    rig: Rig, moment: str, number: int, hosts: tuple[str, ...]
) -> None:
    """It ends, or nothing comes through any more: one restart, for the program's own failure, and nothing is left."""

    def strike() -> None:
        for host in hosts:
            with suppress(ProcessLookupError):
                os.kill(rig.connections(host)[-1]._process.pid, number)

    assert rig.run(moment, strike) == 0, rig.of("note")
    (restart,) = rig.of("restart")
    assert restart["message"].startswith("host-1 (process 1): exited with code 3\nrestart 1 of 1")
    assert rig.of("end")[0]["left_behind"] == []
    wait_until(lambda: rig.processes() == [], "the end of all processes", 30)
