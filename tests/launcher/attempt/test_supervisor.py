"""A supervisor handles single frames and events, without any agent."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from podrun.launcher.agent.base.protocol import ASKED
from podrun.launcher.attempt.cause import Sign, from_error
from podrun.launcher.attempt.failures import SAVE_GRACE
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.attempt.supervisor import FAILURE_GRACE, Supervisor
from podrun.launcher.plan.program import Program
from podrun.launcher.rundir.adoption import Adoption
from podrun.launcher.rundir.logs import Logs
from podrun.launcher.transport.local import LocalTransport
from podrun.runtime.config import Config
from podrun.runtime.contract import ErrorKind, EventKind, ExitCode, Phase

from ..attempts import plan_of

JOB = Config.model_validate({"steps": 3, "batch_size": 8, "launch": {"stop_grace": 7}})


class Seen:
    """An observer that keeps all events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def event(self, event: dict[str, Any]) -> None:
        self.events.append(event)


class Attempt(Supervisor):
    """A supervisor of two hosts that talks to nobody."""

    def __init__(self, folder: Path, adoption: Adoption | None = None) -> None:
        plan = plan_of("cpu-2x1", folder, "true")
        plan = replace(plan, run=replace(plan.run, job=JOB))
        (folder / "logs").mkdir()
        self.seen = Seen()
        super().__init__(plan, LocalTransport(plan.pod), Logs(folder / "logs"), self.seen, adoption)

    def event(self, host: int, **event: Any) -> None:
        self._on_event(f"host-{host}", host, {"time": 0.0, **event})

    def error(self, host: int) -> None:
        self.event(
            host, event=EventKind.ERROR, kind=ErrorKind.EXCEPTION.value, message="E: boom", traceback="", step=5, code=1
        )

    def stopped(self, host: int, reason: str = ASKED) -> None:
        frame = {"reason": reason, "left": [], "kept": None, "missing": 0}
        self._on_stopped(f"host-{host}", frame)

    def exits(self, host: int, code: int, asked: bool = False) -> None:
        self._on_exit(f"host-{host}", {"process": host, "code": code, "error": None, "asked": asked})

    def ends(self) -> Outcome:
        self._heartbeat = cast(Any, SimpleNamespace(slept=lambda within: 0.0))
        return self._outcome()


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def test_an_agent_that_stops_by_itself_has_failed(attempt: Attempt) -> None:
    """For whatever reason it gives; one that was asked to stop has not, and only that one."""
    attempt._start.went = True
    attempt.stopped(0, "no word from the launcher for 10 s")
    (failed,) = attempt._failures.seen
    assert failed.what == "its agent stopped: no word from the launcher for 10 s" and failed.sign is Sign.UNHEARD
    attempt._stopping = True
    attempt.stopped(1, ASKED)
    assert len(attempt._failures.seen) == 1
    attempt._stopping = False
    attempt.stopped(1, ASKED)
    assert len(attempt._failures.seen) == 2


def test_an_agent_that_was_asked_to_stop_by_somebody_else(attempt: Attempt) -> None:
    """Podrun is stopping, but that is not why this agent ended."""
    attempt._stopping = True
    attempt.stopped(0, "the agent got signal 15")
    assert [failed.host for failed in attempt._failures.seen] == ["host-0"]


def test_the_user_who_stops_first_is_the_cause(attempt: Attempt) -> None:
    """A failure while a stop goes on is a consequence of it, and the exit code is that of the signal."""
    attempt._interrupts.append(2)
    attempt._failures.stop(user=True)
    attempt.error(0)
    for host in (0, 1):
        attempt.stopped(host)
    outcome = attempt.ends()
    assert (outcome.code, outcome.interrupted_by, outcome.cause) == (130, 2, None)


def test_a_failure_before_the_users_stop_is_the_cause(attempt: Attempt) -> None:
    """After a failure Ctrl-C does not hide it: the user is told of the failure."""
    attempt.error(0)
    attempt._interrupts.append(2)
    for host in (0, 1):
        attempt.stopped(host)
    outcome = attempt.ends()
    assert (outcome.code, outcome.interrupted_by) == (1, None)
    assert outcome.cause is not None and str(outcome.cause) == "host-0 (process 0): E: boom in step 5"


def test_a_save_that_has_begun_gets_a_minute(attempt: Attempt) -> None:
    """And the stop before and after it what the job says; before the first step there is nothing to save."""
    assert attempt._grace() == FAILURE_GRACE
    for host in (0, 1):
        attempt.event(host, event=EventKind.PHASE, phase=Phase.TRAIN)
        attempt.event(host, event=EventKind.STEP, step=1, steps=3, loss=1.0)
    assert attempt._grace() == 7
    attempt.event(1, event=EventKind.PHASE, phase=Phase.SAVE)
    assert attempt._grace() == SAVE_GRACE == 60.0
    assert attempt._is_saving()
    attempt.exits(1, 0)
    assert attempt._grace() == 7


def test_events_that_are_on_record_are_not_told_again(tmp_path: Path) -> None:
    """After a take-over agents send everything of a process once more; it counts, but is reported only if it is new."""
    adoption = Adoption({}, {("host-0", 0): 2}, started=True)
    attempt = Attempt(tmp_path, adoption)
    for step in (1, 2, 3):
        attempt.event(0, event=EventKind.STEP, step=step, steps=3, loss=1.0)
        attempt.event(1, event=EventKind.STEP, step=step, steps=3, loss=1.0)
    told = [(event["host"], event["step"]) for event in attempt.seen.events]
    assert told == [("host-1", 1), ("host-1", 2), ("host-0", 3), ("host-1", 3)]
    assert attempt._processes["host-0", 0].step == 3


def test_what_ends_a_process_that_was_asked_to_stop(attempt: Attempt) -> None:
    """Its signal or its save is no failure; an exit code of its own is one."""
    attempt.exits(0, -15, asked=True)
    attempt.exits(1, ExitCode.PREEMPTED, asked=True)
    assert attempt._failures.seen == []
    attempt.exits(0, 3, asked=True)
    assert [failed.what for failed in attempt._failures.seen] == ["exited with code 3 before it said anything"]


def test_a_worker_that_explained_itself_is_not_explained_again(attempt: Attempt) -> None:
    """The exit code after an error says nothing new."""
    attempt.error(0)
    attempt.exits(0, 1)
    (failed,) = attempt._failures.seen
    assert failed == from_error("host-0", 0, attempt._processes["host-0", 0].error or {})
    assert [event["event"] for event in attempt.seen.events] == [EventKind.ERROR, EventKind.EXIT]


def test_a_lost_host_that_had_confirmed_its_end_is_not_lost(attempt: Attempt) -> None:
    """Nothing is left there; a host that had not may hold processes."""
    attempt._stopping = True
    attempt.stopped(0)
    lost = {"reason": "gone", "left": None, "silent": False}
    attempt._on_lost("host-0", lost)
    assert not attempt._lost and not attempt._failures
    attempt._on_lost("host-1", lost)
    assert attempt.ends().left_behind == ["host-1: gone"]


def test_a_finished_run_is_done(attempt: Attempt) -> None:
    """All processes are done, and all hosts have confirmed it; one that has not is a failure."""
    for host in (0, 1):
        attempt.event(host, event=EventKind.PHASE, phase=Phase.DONE)
        attempt.exits(host, 0)
    attempt._stopping = True
    attempt.stopped(0)
    assert attempt.ends().code == ExitCode.UNAVAILABLE
    attempt.stopped(1)
    attempt._failures.seen.clear()
    assert attempt.ends().code == ExitCode.DONE


def test_a_program_that_saves_has_time(attempt: Attempt) -> None:
    """As long as podrun's own runtime has, if it says that it saves."""
    attempt._plan = replace(attempt._plan, run=replace(attempt._plan.run, job=Program(("true",), JOB.launch)))
    attempt._processes["host-0", 0].pid = 1
    assert attempt._grace() == 7
    attempt.event(0, event=EventKind.PHASE, phase=Phase.SAVE)
    assert attempt._grace() == SAVE_GRACE


BEAT = struct.Struct("=6Q4dQ")


def beat(moves: int, moved: float = 0.0) -> str:
    return BEAT.pack(moves, tuple(Phase).index(Phase.TRAIN), 4, 0, 1, 1, 0.0, 0.0, 0.0, moved, 0).hex()


def test_the_age_of_a_beat(attempt: Attempt) -> None:
    """A sign of progress counts from the time of the move, by the host's clock, but is never older than a round of beats."""
    process = attempt._processes["host-0", 0]
    for moves, moved, age in ((1, 7.5, 0.5), (2, 8.5, 0.0), (3, 0.0, 1.0)):
        attempt._on_progress("host-0", {"beats": {"0": beat(moves, moved)}, "now": 8.0})
        assert (process.signs, process.age) == (moves, age)
    attempt._on_progress("host-0", {"beats": {"0": beat(3)}, "now": 9.0})
    assert process.signs == 3


@pytest.mark.parametrize("damaged", ["", "00" * 8, "ff" * 128, beat(1, math.nan), beat(1, -1e300)])
def test_a_damaged_beat(attempt: Attempt, damaged: str) -> None:
    """It is told once, and nothing is judged by what it said before: the process may be at work."""
    for _ in range(3):
        attempt._on_progress("host-0", {"beats": {"0": beat(1)}})
        attempt._on_progress("host-0", {"beats": {"0": damaged}})
    assert attempt._processes["host-0", 0].beat is None
    assert len(attempt.seen.events) == 1
    assert "the beat of process 0 on host-0 is damaged" in attempt.seen.events[0]["message"]
