"""Compute the numbers of the comparison table from the measurements of each variant. PURE."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from .variants import Variant

VALIDATION_LOSS, TRAINING_LOSS = "validation loss", "training loss"


class VariantState(StrEnum):
    """State in which a variant ended, or is."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NOT_RUN = "not run"
    PENDING = "pending"
    RUNNING = "running"


@dataclass(frozen=True)
class Step:
    """Record of one step in metrics.jsonl; missing values are None."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    seconds: float | None = None
    is_finite: bool = True
    """False if the loss is not a finite number; then `loss` is None."""


@dataclass(frozen=True)
class Measurement:
    """Measurements of one run of a variant."""

    variant: Variant
    state: VariantState
    reason: str = ""
    """Reason for a state other than `done`."""
    code: int | None = None
    run_id: str | None = None
    workdir: str = ""
    compile_seconds: float | None = None
    steps: tuple[Step, ...] = ()
    evaluations: tuple[tuple[int, float | None], ...] = ()
    """(step, loss) of each evaluation; a loss that is not finite is None."""
    models: int = 1
    """Number of models trained per step: an ensemble trains one on each device."""
    metrics: Mapping[str, tuple[tuple[int, float | None], ...]] = field(default_factory=dict)
    """Values (step, value) of each further metric, by its name; one that is not finite is None.

    Metrics of evaluations have a slash in their names, or begin with `validation`.
    """
    of_evaluations: frozenset[str] = frozenset()
    """Names of the `metrics` that evaluations report."""
    is_program: bool = False

    def in_state(self, state: VariantState) -> Measurement:
        """Return the measurements of a run that has not ended."""
        return replace(self, state=state, reason="")

    @property
    def validation_loss(self) -> float | None:
        """Return the loss of the last evaluation; None without one."""
        return self.evaluations[-1][1] if self.evaluations else None

    @property
    def train_loss(self) -> float | None:
        """Return the training loss: the loss of the last step of a job, or the mean over the last reports of a program."""
        last = self.steps[-1].loss if self.steps else None
        if last is None or not self.is_program:
            return last
        return mean_of_last([step.loss for step in self.steps if step.loss is not None])

    @property
    def train_loss_is_nan(self) -> bool:
        """Return True if the last step with a loss has one that is not finite."""
        losses = self._train_losses()
        return bool(losses) and losses[-1][1] is None

    @property
    def validation_loss_is_nan(self) -> bool:
        """Return True if the loss of the last evaluation is not finite."""
        return bool(self.evaluations) and self.evaluations[-1][1] is None

    def metric(self, name: str) -> float | None:
        """Return the last value of a metric; for the training of a program, the mean over its last reports.

        None if the last value is not finite.
        """
        values = [value for _, value in self.metrics[name]]
        if values[-1] is None or not self.is_program or name in self.of_evaluations:
            return values[-1]
        return mean_of_last([value for value in values if value is not None])

    @property
    def last_values(self) -> dict[str, float | None]:
        """Return the last value of each metric, losses included, by its full name; one that is not finite is None."""
        losses = {VALIDATION_LOSS: self.evaluations, TRAINING_LOSS: self._train_losses()}
        return {name: values[-1][1] for name, values in {**losses, **self.metrics}.items() if values}

    def _train_losses(self) -> list[tuple[int, float | None]]:
        return [(one.step, one.loss) for one in self.steps if one.loss is not None or not one.is_finite]


def full_name(metric: str, names: Collection[str]) -> str | None:
    """Return which of the metrics `metric` names; None if there is none.

    A metric of the evaluations may be named without the word `validation`. Without evaluations `loss` is that of training.
    """
    return next((name for name in (f"validation {metric}", metric, f"training {metric}") if name in names), None)


def mean_of_last(values: Sequence[float]) -> float:
    """Return the mean of the last tenth of the values, because a single one may come from a noisy batch.

    A tenth of few values would be too few to be a mean, so at least 5 count, but no more than a quarter of all.
    """
    count = max(1, math.ceil(len(values) / 10), min(5, len(values) // 4))
    return statistics.fmean(values[-count:])


@dataclass(frozen=True)
class Row:
    """Row of the table: one variant, compared with the first. Numbers are medians over its runs."""

    runs: tuple[Measurement, ...]
    steps: int
    """Last recorded step."""
    compile_seconds: float | None
    median_step: float | None
    total: float | None
    train_loss: float | None
    validation_loss: float | None
    metrics: Mapping[str, float]
    """Last value of each further metric."""
    speedup: float | None
    """Ratio of the first variant's median step time to this one's, per trained model."""
    speedup_interval: tuple[float, float] | None
    """95 % interval of that ratio over the runs; None for the first variant, and for variants that have run once."""
    speedup_by_total: float | None
    """Ratio of the first variant's total time to this one's, per trained model, if both are done."""

    @property
    def measured(self) -> Measurement:
        """Return the run that represents the variant: the first one that is not done, otherwise the first one."""
        return next((run for run in self.runs if run.state is not VariantState.DONE), self.runs[0])


def compare_variants(measured: Sequence[Measurement]) -> list[Row]:
    """Return a row for each variant. Raises IndexError if there are none."""
    runs: dict[str, list[Measurement]] = {}
    for one in measured:
        runs.setdefault(one.variant.name, []).append(one)
    first = runs[measured[0].variant.name]
    return [_row(some, first) for some in runs.values()]


def step_times(steps: Sequence[Step]) -> dict[int, float]:
    """Return the seconds of each step but the first, which includes compilation."""
    return {s.step: s.seconds for s in steps[1:] if s.seconds is not None and s.seconds > 0}


def _median_step(run: Measurement) -> float | None:
    times = step_times(run.steps)
    return statistics.median(times.values()) if times else None


def _total(run: Measurement) -> float | None:
    """Return the seconds of all steps after the first; None if unknown. A record of every n-th step stands for n steps."""
    times = step_times(run.steps)
    spans = {later.step: later.step - earlier.step for earlier, later in pairwise(run.steps)}
    return sum(seconds * spans[step] for step, seconds in times.items()) if times else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _row(runs: Sequence[Measurement], first: Sequence[Measurement]) -> Row:
    total, reference = _median(map(_total, runs)), _median(map(_total, first))
    more = runs[0].models / first[0].models
    all_done = all(run.state is VariantState.DONE for run in (*runs, *first))
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    speedup, interval = _speedup(runs, first, more)
    lasts = {name: _median(run.metric(name) for run in runs if name in run.metrics) for name in names}
    return Row(
        runs=tuple(runs),
        steps=max(run.steps[-1].step if run.steps else 0 for run in runs),
        compile_seconds=_median(run.compile_seconds for run in runs),
        median_step=_median(map(_median_step, runs)),
        total=total,
        train_loss=_median(run.train_loss for run in runs),
        validation_loss=_median(run.validation_loss for run in runs),
        metrics={name: value for name, value in lasts.items() if value is not None},
        speedup=speedup,
        speedup_interval=interval,
        speedup_by_total=more * reference / total if total and reference and all_done else None,
    )


def _speedup(
    runs: Sequence[Measurement], first: Sequence[Measurement], more: float
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the speed-up over the first variant, and its interval. Runs of the same round are compared with each other.

    Args:
        runs: the runs of a variant.
        first: the runs of the first variant.
        more: factor for the number of models that the variant trains at once.
    """
    rounds = {run.variant.repeat: step_times(run.steps) for run in first}
    pairs = [
        (before, times)
        for run in runs
        if (times := step_times(run.steps)) and (before := rounds.get(run.variant.repeat))
    ]
    if not pairs:
        return None, None
    ratios = [more * _ratio([*before.values()], [*times.values()]) for before, times in pairs]
    if runs[0] is first[0]:
        return 1.0, None
    return _over_runs(ratios)


# 97.5 % quantiles of Student's t distribution with 1 to 30 degrees of freedom
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def _over_runs(ratios: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Return the geometric mean of the ratios of several rounds, and its 95 % interval; no interval for a single round."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(middle), None
    student = _STUDENT[min(len(logs) - 1, len(_STUDENT)) - 1]
    half = student * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), (math.exp(middle - half), math.exp(middle + half))


def _ratio(before: Sequence[float], after: Sequence[float]) -> float:
    return statistics.median(before) / statistics.median(after)
