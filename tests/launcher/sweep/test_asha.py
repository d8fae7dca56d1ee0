"""The rule of early stopping, as algorithm 2 of the paper has it, on journals without processes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.sweep.asha import Asha
from podrun.launcher.sweep.events import Event
from podrun.launcher.sweep.journal import Journal
from podrun.launcher.sweep.output import summary
from podrun.launcher.sweep.planned import Sweep
from podrun.launcher.sweep.run_sweep import SweepRun
from podrun.launcher.sweep.state import SweepState, TrialState, state_of
from podrun.launcher.sweep.sweep_file import EarlyStopping
from podrun.runtime.ranking import Ranking

from .made import done, event, fail, made, rung, start, trial

LOSS = Ranking("loss")


def asha(steps: int = 9, factor: int = 3) -> Asha:
    return Asha.of(EarlyStopping(min_steps=1, factor=factor), steps)


def reached(number: int, value: float, *, step: int = 1, run: str = "run") -> list[Event]:
    """Return the events of a trial that pauses at a rung; at the first one it begins."""
    return [*([trial(number)] if step == 1 else []), start(number, run), rung(number, step, value, run)]


def flat(*parts: list[Event]) -> list[Event]:
    return [*itertools.chain(*parts)]


@pytest.mark.parametrize(
    ("steps", "factor", "rungs"), [(9, 3, (1, 3)), (10, 3, (1, 3, 9)), (2, 3, (1,)), (1, 3, ()), (8, 2, (1, 2, 4))]
)
def test_the_rungs_are_before_the_last_step(steps: int, factor: int, rungs: tuple[int, ...]) -> None:
    rule = asha(steps, factor)
    assert rule.rungs == rungs and rule.fewest_trials == factor ** len(rungs)
    ends = [rule.end_after(step) for step in (0, *rungs)]
    assert ends == [*rungs, steps]


def test_one_of_three_goes_on() -> None:
    """The best of three, then again when six have arrived. One that goes on keeps its place among them."""
    events = flat(reached(0, 0.5), reached(1, 0.3))
    assert asha().promotable(state_of(events, LOSS)) is None
    events += reached(2, 0.4)
    promoted = asha().promotable(state_of(events, LOSS))
    assert promoted is not None and promoted.number == 1
    events += [event("promote", trial=1, step=3)]
    assert asha().promotable(state_of(events, LOSS)) is None
    events += flat(reached(3, 0.9), reached(4, 0.8))
    assert asha().promotable(state_of(events, LOSS)) is None
    promoted = asha().promotable(state_of(events + reached(5, 0.1), LOSS))
    assert promoted is not None and promoted.number == 5


def test_the_highest_rung_decides_first() -> None:
    events = flat(*(reached(number, number / 10) for number in range(9)))
    for number in range(3):
        events += [
            event("promote", trial=number, step=3),
            *reached(number, 1 - number / 10, step=3, run=f"more{number}"),
        ]
    promoted = asha().promotable(state_of(events, LOSS))
    assert promoted is not None and (promoted.number, promoted.step) == (2, 3)


def test_of_equal_values_the_lowest_number_goes_on_whatever_arrives_first() -> None:
    parts = [reached(number, 0.5) for number in range(3)]
    begin = [part[0] for part in parts]
    for order in itertools.permutations(parts):
        promoted = asha().promotable(state_of([*begin, *itertools.chain(*(part[1:] for part in order))], LOSS))
        assert promoted is not None and promoted.number == 0


def test_a_high_metric_and_a_pruned_trial() -> None:
    """A pruned trial may go on when a larger budget brings others that are worse."""
    events = flat(reached(0, 0.5), reached(1, 0.3), [event("prune", trial=0, step=1), event("prune", trial=1, step=1)])
    state = state_of(events + reached(2, 0.4), Ranking("score", is_max=True))
    promoted = asha().promotable(state)
    assert promoted is not None and promoted.number == 0 and promoted.described == "pruned at step 1"
    state.apply(event("promote", trial=0, step=3))
    assert state.trials[0].state is TrialState.WAITING


def played(count: int, order: random.Random) -> SweepState:
    """Return a sweep of some trials on two parts of a pod, whose runs end in a random order."""
    rule, state, running = asha(27), SweepState(LOSS), list[int]()
    while True:
        while len(running) < 2:
            promoted = rule.promotable(state)
            number = promoted.number if promoted else len(state.trials)
            if promoted:
                state.apply(event("promote", trial=number, step=rule.end_after(promoted.step)))
            elif number < count:
                state.apply(trial(number))
            else:
                break
            state.apply(start(number))
            running.append(number)
        if not running:
            return state
        number = running.pop(order.randrange(len(running)))
        end, value = rule.end_after(state.trials[number].step), (number * 7 % count) / count
        state.apply(done(number, value) if end == 27 else rung(number, end, value))


@pytest.mark.parametrize("seed", range(5))
def test_in_any_order_at_least_one_of_three_goes_on_from_each_rung(seed: int) -> None:
    """So 27 trials train at least one to its end, the best among them: values keep their order here."""
    state = played(27, random.Random(seed))
    for step, above in ((1, 3), (3, 9)):
        counts = [sum(one in trial.rungs for trial in state.trials.values()) for one in (step, above)]
        assert counts[1] >= counts[0] // 3
    assert state.best is state.trials[0] and state.best.state is TrialState.DONE
    assert {one.state for one in state.trials.values()} == {TrialState.DONE, TrialState.PAUSED}


def test_the_best_is_one_that_is_done_or_else_at_the_highest_rung() -> None:
    events = flat(reached(0, 0.1), reached(1, 0.3), reached(2, 0.2), [event("promote", trial=1, step=3)])
    events += reached(1, 0.29, step=3, run="more")
    state = state_of(events, LOSS)
    assert state.best is state.trials[1] and [one.number for one in state.ranked()] == [1, 0, 2]
    assert state.is_better(5.0)  # none is done
    state = state_of([*events, trial(3), start(3), done(3, 0.9)], LOSS)
    assert state.best is state.trials[3] and not state.is_better(1.0)


def test_a_trial_that_fails_before_the_first_rung_counts_there_as_the_worst() -> None:
    events = [trial(0), start(0), fail(0, retry=False), *reached(1, 0.5)]
    assert asha().promotable(state_of(events, LOSS)) is None
    promoted = asha().promotable(state_of(events + reached(2, 0.4), LOSS))
    assert promoted is not None and promoted.number == 2


def test_a_promoted_trial_that_fails_gives_up_its_place() -> None:
    events = flat(reached(0, 0.1), reached(1, 0.3), reached(2, 0.2), [event("promote", trial=0, step=3)])
    assert asha().promotable(state_of([*events, start(0, "more"), fail(0, True, "more")], LOSS)) is None
    promoted = asha().promotable(state_of([*events, start(0, "more"), fail(0, False, "more")], LOSS))
    assert promoted is not None and promoted.number == 2


Fails = Callable[[int, int], bool]
"""Tells whether a trial (its number) fails on its way to a step."""


def ran(folder: Path, budget: dict[str, int], fails: Fails = lambda number, end: False, parts: int = 1) -> str:
    """Return the last line of a sweep whose runs end in the order of their starts; more trials are not better nor worse."""
    file = made(metric="min loss", early_stopping={"min_steps": 1000}, budget=budget)
    rule = Asha.of(EarlyStopping(min_steps=1000), 9000)
    unused: Any = None
    sweep = Sweep("s", file, unused, [unused] * parts, unused, unused, 9000, None, {}, rule)
    state, running = SweepState(LOSS), list[int]()
    with Journal.open(folder) as journal:
        run = SweepRun(sweep, journal, state, lambda told: None)
        while True:
            while len(running) < parts and (following := run._next()):
                run.record(start(following.number))
                running.append(following.number)
            if not running:
                break
            number = running.pop(0)
            end = rule.end_after(state.trials[number].step)
            if fails(number, end):
                run.record(fail(number, retry=False))
            else:
                value = (number * 7 % 11) / 11
                run.record(done(number, value) if end == 9000 else rung(number, end, value))
        run._prune()
        assert run.is_complete
        return summary(state, run.limit(), "again")


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        (lambda number, end: number == 3, "1 trial done, 1 failed, 7 pruned"),
        (lambda number, end: number == 0 and end == 9000, "1 trial done, 1 failed, 7 pruned"),
        (lambda number, end: number != 5, "1 trial done, 8 failed"),
        (lambda number, end: number != 8 or end == 3000, "0 trials done, 9 failed"),
    ],
    ids=["before the first rung", "the best on its way to the end", "all but one", "all"],
)
def test_with_the_fewest_trials_one_is_trained_to_its_end_unless_all_fail(
    tmp_path: Path, fails: Fails, expected: str
) -> None:
    assert ran(tmp_path, {"trials": 9}, fails).startswith(expected)


@pytest.mark.parametrize("parts", [1, 4, 30])
@pytest.mark.parametrize("steps", [21_000, 22_000, 30_000, 45_500])
def test_a_budget_of_steps_trains_one_to_its_end(tmp_path: Path, steps: int, parts: int) -> None:
    """Also if more trials could begin side by side than the budget has steps for."""
    assert int(ran(tmp_path, {"steps": steps}, parts=parts).split()[0]) >= 1


def test_no_trial_begins_in_place_of_one_that_waits_for_its_place(tmp_path: Path) -> None:
    last = ran(tmp_path, {"steps": 21_000}, lambda number, end: end == 9000 and number == 0)
    assert last.startswith("0 trials done, 1 failed, 8 pruned")
    assert last.endswith(
        "complete: budget.steps has 0 left, and trial 8 would need 6000; no trial was trained to its end"
    )


def test_a_trial_of_a_lower_rung_goes_on_if_one_of_a_higher_does_not_fit() -> None:
    events = flat(*(reached(number, number / 20) for number in range(12)))
    for number in range(3):
        events += [event("promote", trial=number, step=3), *reached(number, 0.1, step=3, run=f"more{number}")]
    state = state_of(events, LOSS)
    both = [asha().promotable(state, left) for left in (6, 5, 1)]
    assert [one and (one.number, one.step) for one in both] == [(0, 3), (3, 1), None]


@pytest.mark.parametrize(
    "events",
    [
        [trial(0), rung(0, 1, 0.5)],
        [*reached(0, 0.5), start(0, "more")],
        [*reached(0, 0.5), event("promote", trial=0, step=3), start(0), rung(0, 1, 0.5)],
        [trial(0), event("promote", trial=0, step=3)],
        [trial(0), start(0), event("prune", trial=0, step=1)],
    ],
    ids=[
        "a rung without a run",
        "a paused trial that starts",
        "a rung twice",
        "promoted before a rung",
        "pruned while it runs",
    ],
)
def test_events_that_contradict_each_other_are_refused(events: list[Event]) -> None:
    with pytest.raises((KeyError, ValueError)):
        state_of(events, LOSS)
