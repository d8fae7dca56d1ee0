"""Trials that Optuna chooses: a function of the seed, the number and the results before."""

from __future__ import annotations

import pytest

from podrun.launcher.sweep.state import Trial, TrialState
from podrun.launcher.sweep.sweep_file import SweepFile

from .made import made

pytest.importorskip("optuna", reason="the extra optuna is not installed")
from podrun.launcher.sweep.optuna_search import suggested

SPACE = {
    "x": {"min": 0, "max": 1},
    "lr": {"min": 1e-4, "max": 1e-1, "log": True},
    "layers": {"min": 1, "max": 8, "int": True},
    "mesh": {"values": [[1, 2], [2, 1]]},
}


def searched(file: SweepFile, count: int) -> list[Trial]:
    """Return the trials of a search, one after another, whose results are best at x = 0.3."""
    trials: list[Trial] = []
    for number in range(count):
        values = suggested(file, number, trials)
        value = -abs(float(str(values["x"])) - 0.3)
        state = TrialState.FAILED if number % 5 == 4 else TrialState.DONE
        trials.append(Trial(number, values, state, value=None if state is TrialState.FAILED else value))
    return trials


def test_the_same_arguments_give_the_same_values() -> None:
    file = made(search="optuna", space=SPACE)
    trials = searched(file, 14)
    assert [suggested(file, one.number, trials[: one.number]) for one in trials] == [one.values for one in trials]
    assert suggested(made(search="optuna", space=SPACE, seed=1), 13, trials[:13]) != trials[13].values


def test_values_are_of_the_space() -> None:
    trials = searched(made(search="optuna", space=SPACE), 40)
    assert {type(one.values["layers"]) for one in trials} == {int}
    assert all(one.values["mesh"] in ([1, 2], [2, 1]) for one in trials)


def test_a_search_learns_from_its_results() -> None:
    trials = searched(made(search="optuna", space={"x": SPACE["x"]}, seed=3), 40)
    distances = [abs(float(str(one.values["x"])) - 0.3) for one in trials]
    assert sum(distances[30:]) < sum(distances[:10]) / 2


def test_a_trial_that_was_stopped_early_is_told_with_its_values_at_the_rungs() -> None:
    """They decide as results do: of 12 trials at a rung the good ones are near x = 0.3."""
    file = made(search="optuna", space={"x": SPACE["x"]}, metric="min score")
    values = [{"x": number / 12} for number in range(12)]
    rungs = [{10: abs(one["x"] - 0.3), 30: abs(one["x"] - 0.3) / 2} for one in values]
    trials = [Trial(n, values[n], TrialState.PRUNED, rungs=rungs[n]) for n in range(12)]
    near = [abs(float(str(suggested(file, number, trials)["x"])) - 0.3) for number in range(12, 22)]
    random = [abs(float(str(suggested(file, number, [])["x"])) - 0.3) for number in range(12, 22)]
    assert sum(near) < sum(random) / 2
