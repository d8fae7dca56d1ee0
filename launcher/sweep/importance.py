"""Estimate how much each key matters for the metric: the share of the variance that its values explain. PURE."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pydantic import JsonValue

from .space import text_of
from .state import SweepState, TrialState

_GROUPS = 4
"""Number of equally large groups of neighbouring values into which the numbers of a range are divided."""
_FEWEST = 8
"""Number of finished trials below which nothing is said."""


def importance(state: SweepState) -> dict[str, float]:
    """Return, for each key, the share of the variance of the ranks of the results that its values explain, from 0 to 1.

    Results are ranked, so that one very bad trial does not decide. A key's values form groups: each listed value, or the
    quarters of a range. The share is corrected for chance (epsilon squared), so a key without influence has about 0. Keys are
    looked at one by one: interactions of keys are not seen. With early stopping the results are those at the first
    rung, which are all of the same step. Empty if too few trials have results.
    """
    results = {trial.number: trial.rungs[min(trial.rungs)] for trial in state.in_state(*TrialState) if trial.rungs}
    if not results:
        results = {trial.number: trial.value or 0.0 for trial in state.in_state(TrialState.DONE)}
    if len(results) < _FEWEST:
        return {}
    trials, ranks = [state.trials[number] for number in results], _ranks([*results.values()])
    keys = dict.fromkeys(key for trial in trials for key in trial.values)
    return {key: _share(_groups([trial.values.get(key) for trial in trials]), ranks) for key in keys}


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values have the mean of their ranks."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [statistics.fmean(places[value]) for value in values]


def _groups(values: Sequence[JsonValue]) -> list[int | str]:
    """Return the group of each value: the quarter of a number if there are many different ones, otherwise the value."""
    numbers = [float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(values) or len(set(numbers)) <= _GROUPS:
        return [text_of(value) for value in values]
    return [int(rank * _GROUPS / len(values)) for rank in _ranks(numbers)]


def _share(groups: Sequence[int | str], ranks: Sequence[float]) -> float:
    """Return the share of the variance of the ranks that the groups explain, without what chance would explain."""
    total = statistics.pvariance(ranks) * len(ranks)
    members: dict[int | str, list[float]] = {}
    for group, rank in zip(groups, ranks, strict=True):
        members.setdefault(group, []).append(rank)
    within = sum(statistics.pvariance(some) * len(some) for some in members.values())
    if not total or len(members) < 2 or len(members) == len(ranks):
        return 0.0
    by_chance = (len(members) - 1) * within / (len(ranks) - len(members))
    return max(0.0, (total - within - by_chance) / total)
