"""Compute the numbers of the comparison table from the measurements of each variant. PURE."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .variants import Variant

_RESAMPLES = 2000


class VariantState(StrEnum):
    """State in which a variant ended."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Step:
    """Record of one step in metrics.jsonl; missing values are None."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Measurement:
    """Measurements of one variant."""

    variant: Variant
    state: VariantState
    reason: str = ""
    """Reason for a state other than done."""
    code: int | None = None
    run_id: str | None = None
    workdir: str = ""
    compile_seconds: float | None = None
    steps: tuple[Step, ...] = ()
    evaluations: tuple[tuple[int, float | None], ...] = ()
    """(step, loss) of each evaluation; a loss that is not finite is None."""
    models: int = 1
    """Models trained per step: an ensemble trains one on each device."""

    @property
    def validation_loss(self) -> float | None:
        """Return the loss of the last evaluation."""
        return self.evaluations[-1][1] if self.evaluations else None


@dataclass(frozen=True)
class Row:
    """Row of the table: one variant, compared with the first."""

    measured: Measurement
    steps: int
    """Last recorded step."""
    median_step: float | None
    total: float | None
    train_loss: float | None
    speedup: float | None
    """Ratio of the first variant's median step time to this one's, per trained model."""
    speedup_interval: tuple[float, float] | None
    """95 % interval of that ratio, by bootstrap over the steps; None for the first variant."""
    speedup_by_total: float | None
    """Ratio of the first variant's total time to this one's, per trained model, if both are done."""


def compare_variants(measured: Sequence[Measurement]) -> list[Row]:
    """Return a row for each variant. Raises IndexError if there are none."""
    first, reference = measured[0], step_times(measured[0].steps)
    return [_row(one, first, reference) for one in measured]


def step_times(steps: Sequence[Step]) -> dict[int, float]:
    """Return the seconds of each step but the first, which includes compilation."""
    return {s.step: s.seconds for s in steps[1:] if s.seconds is not None and s.seconds > 0}


def _row(one: Measurement, first: Measurement, reference: Mapping[int, float]) -> Row:
    times = step_times(one.steps)
    total = sum(times.values()) if times else None
    comparable = bool(times and reference)
    more = one.models / first.models
    both_done = one.state is VariantState.DONE and first.state is VariantState.DONE
    return Row(
        measured=one,
        steps=one.steps[-1].step if one.steps else 0,
        median_step=statistics.median(times.values()) if times else None,
        total=total,
        train_loss=one.steps[-1].loss if one.steps else None,
        speedup=more * _ratio([*reference.values()], [*times.values()]) if comparable else None,
        speedup_interval=_interval([*reference.values()], [*times.values()], more)
        if comparable and one is not first
        else None,
        speedup_by_total=more * sum(reference.values()) / total if total and reference and both_done else None,
    )


def _ratio(before: Sequence[float], after: Sequence[float]) -> float:
    return statistics.median(before) / statistics.median(after)


def _interval(before: Sequence[float], after: Sequence[float], factor: float) -> tuple[float, float]:
    """Return the middle 95 % of the ratios of medians of resampled steps.

    The rank of a resample's median among the n sorted values has a beta distribution, so no resampling is needed.
    """
    chance = random.Random(0)
    first, second = sorted(before), sorted(after)
    ratios = sorted(factor * _any_median(first, chance) / _any_median(second, chance) for _ in range(_RESAMPLES))
    return ratios[_RESAMPLES // 40], ratios[-_RESAMPLES // 40]


def _any_median(ordered: Sequence[float], chance: random.Random) -> float:
    half = (len(ordered) + 1) / 2
    return ordered[min(int(len(ordered) * chance.betavariate(half, half)), len(ordered) - 1)]
