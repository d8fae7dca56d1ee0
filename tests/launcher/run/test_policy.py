"""Decide which attempt is followed by another, and after how long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.attempt.cause import LAUNCHER, Failure, FailureKind
from podrun.launcher.attempt.observers import Observers
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.run.history import AttemptHistory, budget_of, restart_event
from podrun.launcher.run.policy import Attempt, Budget, Ending, Restart, Stop, decide, why_not_renewed
from podrun.launcher.rundir.events import Event
from podrun.runtime.config import Launch
from podrun.runtime.contract import ExitCode

from ..attempts import plan_of

BUDGET = Budget(failures=3, preemptions=5)
FAILED = Attempt(Ending.FAILED, 1, "ValueError: boom in step 5", trained=True)
OTHER = FAILED._replace(what="exited with code 3 after step 7", code=3)
LOST = Attempt(Ending.LOST, ExitCode.UNAVAILABLE, "its agent ended", trained=True)
STALLED = Attempt(Ending.FAILED, ExitCode.STALLED, "stands still in step 5", trained=True)
UNFIT = Attempt(Ending.UNFIT, ExitCode.UNAVAILABLE, "no route to host")
PREEMPTED = Attempt(Ending.PREEMPTED, ExitCode.PREEMPTED, "was asked to stop", trained=True)
KILLED = Attempt(Ending.FAILED, 137, "was ended by SIGKILL after step 5", trained=True)
ASLEEP = Attempt(Ending.ASLEEP, ExitCode.UNAVAILABLE, "was asleep for 31 s", trained=True)
TAKEN = Attempt(Ending.TAKEN, ExitCode.UNAVAILABLE, "its agent ended", trained=True)
QUICK = Attempt(Ending.FAILED, 1, "exited with code 1", seconds=3, silent_program=True)
LONG = QUICK._replace(seconds=300)
SAVED = [(OTHER if n % 2 else FAILED)._replace(saved=10 * n) for n in range(5)]


@pytest.mark.parametrize(
    ("attempts", "why"),
    [
        ([Attempt(Ending.DONE)], ""),
        ([Attempt(Ending.STOPPED, 130)], ""),
        ([Attempt(Ending.LAUNCHER, 69)], "launcher's own machine"),
        ([Attempt(Ending.UNPREPARED, 69)], "not ready"),
        ([Attempt(Ending.CONFIG, 2)], "a restart does not correct"),
        ([LOST, Attempt(Ending.CONFIG, 2)], "a restart does not correct"),
        ([FAILED._replace(trained=False)], "before its first step"),
        ([STALLED._replace(trained=False)], "before its first step"),
        ([FAILED, FAILED], "same failure came twice"),
        ([STALLED, STALLED], "same failure came twice"),
        ([FAILED._replace(saved=5), FAILED._replace(saved=5)], "same failure came twice"),
        ([QUICK, QUICK], "twice, each time within 30 s"),
        (SAVED[:4], "launch.max_restarts is 3"),
        ([LOST] * 4, "launch.max_restarts is 3"),
        ([LONG] * 4, "launch.max_restarts is 3"),
        ([KILLED] * 4, "launch.max_restarts is 3"),
        ([PREEMPTED] * 6, "launch.max_preemptions is 5"),
    ],
)
def test_a_run_ends(attempts: list[Attempt], why: str) -> None:
    decision = decide(attempts, BUDGET)
    assert isinstance(decision, Stop)
    assert why in decision.why
    assert bool(decision.why) == bool(why)


@pytest.mark.parametrize(
    ("attempts", "label"),
    [
        ([FAILED], "restart 1 of 3"),
        ([LOST, FAILED._replace(trained=False)], "restart 2 of 3"),
        ([LOST._replace(trained=False)], "restart 1 of 3"),
        ([STALLED], "restart 1 of 3"),
        ([KILLED, KILLED], "restart 2 of 3"),
        ([FAILED, OTHER, FAILED], "restart 3 of 3"),
        ([FAILED, FAILED._replace(saved=10)], "restart 2 of 3"),
        ([FAILED, PREEMPTED, FAILED], "restart 2 of 3"),
        ([QUICK], "restart 1 of 3"),
        ([QUICK, LONG], "restart 2 of 3"),
        ([QUICK, QUICK._replace(code=2)], "restart 2 of 3"),
        ([PREEMPTED], "restart after preemption 1 of 5"),
        ([*[LOST] * 3, PREEMPTED], "restart after preemption 1 of 5"),
        ([*[PREEMPTED] * 5, LOST], "restart 1 of 3"),
        ([*[LOST] * 3, *[PREEMPTED] * 5, Attempt(Ending.RESIZED, 143)], "restart with all hosts"),
        ([FAILED, UNFIT], "another start"),
        ([UNFIT, FAILED, UNFIT, OTHER], "restart 2 of 3"),
    ],
)
def test_a_run_is_started_again(attempts: list[Attempt], label: str) -> None:
    decision = decide(attempts, BUDGET)
    assert isinstance(decision, Restart), decision
    assert decision.label == label


def test_a_host_that_is_not_ready_is_no_failure_of_the_job() -> None:
    assert decide([UNFIT], Budget(0, 0)) == Restart(0.0, "another start")


@pytest.mark.parametrize("attempt", [FAILED, LOST, PREEMPTED, QUICK])
def test_nobody_asked_for_restarts(attempt: Attempt) -> None:
    assert decide([attempt], Budget(0, 0)) == Stop("")


def test_a_launcher_that_slept_uses_up_no_restart() -> None:
    """Nobody is to blame; without restarts the run ends all the same."""
    assert decide([LOST, ASLEEP], Budget(1, 0)) == Restart(0.0, "another start, which does not count")
    assert decide([ASLEEP] * 9 + [LOST], BUDGET) == Restart(0.0, "restart 1 of 3")
    assert decide([ASLEEP], Budget(0, 0)) == Stop("")


def wait(attempts: list[Attempt]) -> float:
    decision = decide(attempts, Budget(1000, 1000))
    assert isinstance(decision, Restart)
    return decision.after


def test_the_pause_before_a_restart_grows_until_there_is_progress() -> None:
    assert [wait([LOST] * n) for n in range(1, 10)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert wait([LOST] * 500) == 60
    assert [wait([*[LOST] * 5, *[LOST._replace(saved=10)] * n]) for n in range(1, 4)] == [0, 0, 1]
    assert [wait([*[QUICK, LOST] * 3, LONG]), wait([LONG, LONG, QUICK])] == [0, 0]


def test_budgets_of_a_job(tmp_path: Path) -> None:
    plan = plan_of("cpu-1x1", tmp_path, "true")

    def budget(**launch: int) -> Budget:
        return budget_of(replace(plan, run=replace(plan.run, job=replace(plan.run.job, launch=Launch(**launch)))))  # type: ignore[type-var]

    assert budget() == Budget(0, 0)
    assert budget(max_restarts=2) == Budget(2, 100)
    assert budget(max_restarts=2, max_preemptions=0) == Budget(2, 0)
    assert budget(max_preemptions=7) == Budget(0, 7)


CAUSE = Failure("host-0", 0, "exited with code 1", ExitCode.FAILED)


@pytest.mark.parametrize(
    ("outcome", "ending"),
    [
        (Outcome(1, CAUSE), Ending.FAILED),
        # of a user program, which means by it what it likes
        (Outcome(2, CAUSE._replace(code=2, kind=FailureKind.EXITED)), Ending.FAILED),
        (Outcome(2, CAUSE._replace(code=2)), Ending.CONFIG),  # an error of podrun's, such as UserError
        (Outcome(0), Ending.DONE),
        (Outcome(69, CAUSE, finished=True), Ending.DONE),
        (Outcome(130, interrupted_by=2), Ending.STOPPED),
        (Outcome(1, CAUSE._replace(host=LAUNCHER)), Ending.LAUNCHER),
        (Outcome(69, CAUSE, unprepared=True), Ending.UNPREPARED),
        (Outcome(69, CAUSE._replace(process=None)), Ending.LOST),
        (Outcome(75, CAUSE._replace(kind=FailureKind.ASKED)), Ending.PREEMPTED),
    ],
)
def test_endings(outcome: Outcome, ending: Ending, tmp_path: Path) -> None:
    assert AttemptHistory().attempt(outcome, plan_of("cpu-1x1", tmp_path, "true"), 0.0).ending is ending


def test_an_attempt_that_podrun_stopped_itself_counts_as_resized(tmp_path: Path) -> None:
    """Only this one, and only if nothing failed meanwhile."""
    plan, stopped = plan_of("cpu-1x1", tmp_path, "true"), Outcome(143, interrupted_by=15)
    history = AttemptHistory()
    history.resized = True
    assert history.attempt(stopped, plan, 0.0).ending is Ending.RESIZED
    assert history.attempt(Outcome(1, CAUSE), plan, 0.0).ending is Ending.FAILED
    history.event({"event": "start", "time": 1.0})
    assert history.attempt(stopped, plan, 0.0).ending is Ending.STOPPED


class Events(list[Event]):
    def event(self, event: Event) -> None:
        self.append(event)


def test_a_supervisor_that_takes_over_knows_what_was_before(tmp_path: Path) -> None:
    """From the record: the budget is the run's."""
    plan = plan_of("cpu-1x1", tmp_path, "true")
    events = Events()
    history = AttemptHistory()
    progress = Observers(history, events)
    progress.event({"event": "start", "time": 1.0})
    progress.event({"event": "host", "time": 2.0, "host": "host-0", "phase": "started"})
    for phase in ("connect", "setup", "compile", "train"):
        progress.event({"event": "phase", "time": 3.0, "phase": phase})
    progress.event({"event": "checkpoint", "time": 4.0, "step": 10})
    progress.event({"event": "exit", "time": 8.0, "host": "host-0", "process": 0, "code": 1})
    first = history.attempt(Outcome(1, CAUSE), plan, 8.5)
    assert first == Attempt(Ending.FAILED, 1, "exited with code 1", True, 10, 6.0, False)
    progress.event(restart_event(first, "again", 8.0))
    progress.event({"event": "start", "time": 9.0})
    progress.event({"event": "resume", "time": 9.5, "step": 10})
    later = AttemptHistory()
    later.replay(events)
    assert later.past == [first]
    assert later.attempt(Outcome(1, CAUSE), plan, 9.9) == Attempt(
        Ending.FAILED, 1, "exited with code 1", False, 10, 0.0, True
    )


@pytest.mark.parametrize(
    ("attempts", "times"),
    [
        ([TAKEN] * 4, 0),
        ([TAKEN] * 5, 5),
        ([TAKEN._replace(saved=2 * n) for n in range(50)], 0),
        ([*(TAKEN._replace(saved=2 * n) for n in range(50)), *[TAKEN._replace(saved=98)] * 4], 0),
        ([*(TAKEN._replace(saved=2 * n) for n in range(50)), *[TAKEN._replace(saved=98)] * 5], 5),
        ([TAKEN, TAKEN, FAILED, TAKEN, TAKEN, TAKEN], 0),
        ([TAKEN._replace(seconds=3, silent_program=True)] * 5, 5),
        ([TAKEN._replace(seconds=300, silent_program=True)] * 50, 0),
    ],
)
def test_machines_that_are_taken_again_and_again(attempts: list[Attempt], times: int) -> None:
    """Without a new checkpoint in between, or a program that has run for a while."""
    why = f"the machines were taken away {times} times in a row before a new checkpoint was complete" if times else ""
    assert why_not_renewed(attempts) == why


def test_machines_that_were_taken_use_up_no_restart() -> None:
    assert decide([TAKEN] * 50 + [LOST], BUDGET) == Restart(0.0, "restart 1 of 3")
