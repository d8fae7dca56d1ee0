"""Rank evaluations by the job's key `eval.best`, and decide whether training may end because none was better for long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypedDict

from .events import Metrics


@dataclass(frozen=True)
class Ranking:
    """An order of evaluations by one of their metrics."""

    metric: str = "loss"
    is_max: bool = False
    """True if the highest value is the best."""

    @classmethod
    def parse(cls, text: str) -> Ranking:
        """Return the order that `min METRIC` or `max METRIC` names. Raises ValueError."""
        words = text.split(maxsplit=1)
        if len(words) != 2 or words[0] not in ("min", "max"):
            raise ValueError(f"must be min or max, and a metric, such as `min loss` or `max accuracy` (it is {text!r})")
        return cls(words[1].strip(), words[0] == "max")

    def __str__(self) -> str:
        return f"{'max' if self.is_max else 'min'} {self.metric}"

    def cost(self, metrics: Metrics) -> float | None:
        """Return a number that is lower for a better evaluation; None if the metric is missing or not finite."""
        return self.cost_of(metrics.get(self.metric))

    def cost_of(self, value: object) -> float | None:
        """Return the cost of an evaluation with this value of the metric; None if it is not a finite number."""
        try:
            number = float(value) if isinstance(value, (int, float)) else math.nan
        except OverflowError:
            return None
        return (-number if self.is_max else number) if math.isfinite(number) else None


LOWEST_LOSS = Ranking()


class SavedBest(TypedDict):
    """The best evaluation so far, as a checkpoint has it."""

    by: str
    """The value of `eval.best`."""
    step: int
    value: float | None
    since: int
    """Number of evaluations after it."""


@dataclass
class BestSoFar:
    """The best evaluation of a training so far."""

    ranking: Ranking
    patience: int | None = None
    """Number of evaluations without a better one after which training ends; None: it goes on."""
    step: int = 0
    value: float | None = None
    """The value of the metric; None before the first evaluation that has a finite one."""
    since: int = 0
    """Number of evaluations since the best one, or since the beginning."""

    def add(self, step: int, metrics: Metrics) -> None:
        """Add an evaluation after `step`."""
        value = metrics.get(self.ranking.metric)
        cost, best = self.ranking.cost_of(value), self.ranking.cost_of(self.value)
        if isinstance(value, (int, float)) and cost is not None and (best is None or cost < best):
            self.step, self.value, self.since = step, value, 0
        else:
            self.since += 1

    @property
    def is_exhausted(self) -> bool:
        """Return whether `patience` evaluations in a row were not better than the best, so that training ends."""
        return self.patience is not None and self.since >= self.patience

    def saved(self) -> SavedBest | None:
        """Return this as a value that JSON represents without loss; None before the first evaluation."""
        if self.value is None and self.since == 0:
            return None
        return {"by": str(self.ranking), "step": self.step, "value": self.value, "since": self.since}

    def restore(self, saved: SavedBest | None) -> None:
        """Continue from a result of `saved`, unless the job ranks by another metric now."""
        if saved is not None and saved["by"] == str(self.ranking):
            self.step, self.value, self.since = saved["step"], saved["value"], saved["since"]


def check_saved(saved: Any) -> None:
    """Raise ValueError, KeyError or TypeError unless `BestSoFar.saved` can have returned this value."""
    Ranking.parse(saved["by"])
    if not all(isinstance(saved[key], int) and saved[key] >= 0 for key in ("step", "since")):
        raise TypeError("best: step or since is not a number of 0 or more")
    if not isinstance(saved["value"], (int, float, type(None))):
        raise TypeError("best: value is not a number")
