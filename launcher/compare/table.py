"""PURE: from what was measured of each variant to the numbers that are compared."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .variants import Variant


class State(StrEnum):
    """How a variant ended."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Step:
    """What metrics.jsonl says of one step; None for what it does not say."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Measured:
    """What is known of one variant."""

    variant: Variant
    state: State
    reason: str = ""
    """Why it is not done."""
    code: int | None = None
    run_id: str | None = None
    workdir: str = ""
    compile_seconds: float | None = None
    steps: tuple[Step, ...] = ()
    validation_loss: float | None = None


@dataclass(frozen=True)
class Row:
    """One variant, compared with the first."""

    measured: Measured
    steps: int
    """The last step that is on record."""
    median_step: float | None
    total: float | None
    train_loss: float | None
    speedup_by_step: float | None
    """The mean, over the steps that both have, of the first variant's time for a step / this one's."""
    speedup_by_total: float | None
    """The first variant's total / this one's, if both are done."""


def compare(measured: Sequence[Measured]) -> list[Row]:
    """A row for each variant. Raises IndexError without any."""
    first, reference = measured[0], step_times(measured[0].steps)
    return [_row(one, first, reference) for one in measured]


def step_times(steps: Sequence[Step]) -> dict[int, float]:
    """Seconds by step, without the first one, which compiles."""
    return {s.step: s.seconds for s in steps[1:] if s.seconds is not None and s.seconds > 0}


def _row(one: Measured, first: Measured, reference: Mapping[int, float]) -> Row:
    times = step_times(one.steps)
    total = sum(times.values()) if times else None
    ratios = [reference[step] / seconds for step, seconds in times.items() if step in reference]
    both_done = one.state is State.DONE and first.state is State.DONE
    return Row(
        measured=one,
        steps=one.steps[-1].step if one.steps else 0,
        median_step=statistics.median(times.values()) if times else None,
        total=total,
        train_loss=one.steps[-1].loss if one.steps else None,
        speedup_by_step=statistics.fmean(ratios) if ratios else None,
        speedup_by_total=sum(reference.values()) / total if total and reference and both_done else None,
    )
