"""The state of a sweep, as its journal has it, without processes."""

from __future__ import annotations

import pytest

from podrun.launcher.sweep.state import TrialState, state_of
from podrun.runtime.ranking import Ranking

from .made import begin, done, event, fail, start, trial

MAX = Ranking("score", is_max=True)


def test_what_a_journal_says() -> None:
    """A failure with a retry leaves the trial waiting; the best is that of the lowest number among equals."""
    events = [
        trial(0),
        start(0),
        trial(1),
        start(1),
        done(1, 0.5),
        fail(0, retry=True),
        start(0, "again"),
        done(0, 0.5, run="again"),
    ]
    events += [trial(2), start(2), fail(2, retry=False), trial(3), start(3), trial(4)]
    state = state_of(events, MAX)
    assert [one.state for one in state.in_state(*TrialState)] == ["done", "done", "failed", "running", "waiting"]
    assert state.trials[0].runs == ["run", "again"] and state.trials[0].failures == 1
    assert state.best is state.trials[0]
    assert state.is_better(0.6) and not state.is_better(0.5)


def test_the_order_in_which_results_arrive_does_not_change_the_best() -> None:
    begin = [trial(0), trial(1), start(0), start(1)]
    ends = [done(0, 0.5), done(1, 0.5)]
    assert {state_of([*begin, *order], MAX).best.number for order in (ends, ends[::-1])} == {0}  # type: ignore[union-attr]


def test_a_stopped_trial_goes_on_and_is_not_counted_as_failed() -> None:
    state = state_of([trial(0), start(0), event("stop", trial=0, run="run", reason="interrupted")], MAX)
    assert state.trials[0].state is TrialState.WAITING and state.trials[0].failures == 0


def test_the_time_between_two_calls_is_not_counted() -> None:
    events = [trial(0, 10.0), start(0, at=20.0), event("resume", 1000.0, file={}), done(0, 1.0, at=1005.0)]
    assert state_of(events, MAX).seconds == 15.0
    events[2] = event("resume", 1000.0, file={}, last=26.0)  # a killed call has left a run, which went on until then
    assert state_of(events, MAX).seconds == 21.0


def test_a_clock_that_is_set_during_a_call_changes_no_hours() -> None:
    """Each call counts by its own steady clock; in a journal without it the times count."""
    ahead = 36_000.0
    events = [
        event("trial", 10.0, elapsed=0.0, trial=0, values={"lr": 0.1}),
        {**start(0, at=20.0), "elapsed": 10.0},
        {**done(0, 1.0, at=ahead + 70.0), "elapsed": 60.0},
        event("resume", 1000.0, elapsed=0.1, file={}),
        event("trial", 900.0, elapsed=5.0, trial=1, values={"lr": 0.1}),
    ]
    state = state_of(events, MAX)  # type: ignore[arg-type]
    assert (state.seconds, state.seconds_before) == (65.0, 60.0)
    earlier = [trial(0, 10.0), start(0, at=20.0), *events[3:]]
    assert state_of(earlier, MAX).seconds == 15.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "events",
    [
        [start(0)],
        [trial(0), trial(0)],
        [trial(1)],
        [trial(0), start(0), done(0, 1.0), done(0, 2.0)],
        [trial(0), done(0, 1.0)],
        [trial(0), start(0), start(0, "again")],
        [trial(0), start(0), done(0, 1.0, run="other")],
        [trial(0), start(0), fail(0, retry=True, run="")],
        [trial(0), start(0, "")],
        [trial(0), start(0, "../../etc")],
        [begin(), trial(0), begin()],
    ],
    ids=[
        "a trial that was not chosen",
        "a trial that is chosen twice",
        "a trial without those before it",
        "a trial that has ended twice",
        "a trial that is done and was not started",
        "a trial that is started twice at once",
        "the end of another run",
        "values that are refused while the trial runs",
        "a run without an id",
        "a run whose id leaves the folder of the runs",
        "two sweeps",
    ],
)
def test_events_that_contradict_each_other_are_refused(events: list[object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        state_of(events, MAX)  # type: ignore[arg-type]
