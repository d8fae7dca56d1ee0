"""Average the steps' metrics over each epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

_OF_THE_STEP = ("grad_norm", "learning_rate")
"""Metrics that describe one step and are not averaged."""


class SavedMeans(TypedDict):
    """The sums of an unfinished epoch, as they are saved in a checkpoint."""

    sums: dict[str, float]
    counts: dict[str, int]
    epoch_size: int
    """Checkpoints of older versions have none."""


@dataclass
class EpochMeans:
    """Sum the steps' metrics over an epoch. The sums are saved with each checkpoint.

    A step belongs to the epoch of its last example: without `drop_last` its batch may begin in the epoch before.
    """

    epoch_size: int
    """Number of examples in an epoch."""
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Number of steps in the sum, by metric. Some metrics exist for logged steps only."""

    def epoch_of(self, position: int, batch_size: int) -> int | None:
        """Return the epoch, counted from 1, that ends with the step ending at `position`; None if none ends there."""
        epoch = position // self.epoch_size
        return epoch if epoch > (position - batch_size) // self.epoch_size else None

    def position_from(self, saved: SavedMeans | None, position: int, batch_size: int) -> int:
        """Return a resumed job's position, rounded up to the start of a batch of its epoch.

        Used with `drop_last` only: there an epoch ends with a batch, so that its size depends on the batch size, which may
        have changed. An epoch that was not over has at least one batch left.

        Args:
            saved: the sums in the checkpoint; None if it has none.
            position: number of examples consumed at the checkpoint.
            batch_size: the resumed job's batch size.
        """
        epoch, place = divmod(position, saved.get("epoch_size", self.epoch_size) if saved else self.epoch_size)
        return epoch * self.epoch_size + min(-(-place // batch_size) * batch_size, self.epoch_size - batch_size)

    def add(self, metrics: dict[str, float]) -> None:
        """Add a step's metrics.

        They are means over its batch, except those that describe the step itself, such as learning_rate.
        """
        for name, value in metrics.items():
            if name not in _OF_THE_STEP:
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """Return the means and reset the sums for the next epoch."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means

    def saved(self) -> SavedMeans:
        """Return the sums of the current epoch as a value that JSON represents without loss."""
        return {"sums": dict(self.sums), "counts": dict(self.counts), "epoch_size": self.epoch_size}

    def restore(self, saved: SavedMeans | None) -> None:
        """Continue from a result of `saved`; None if nothing was saved."""
        if saved is not None:
            self.sums = dict(saved["sums"])
            self.counts = {name: int(count) for name, count in saved["counts"].items()}


def check_saved(saved: Any) -> None:
    """Raise ValueError, KeyError or TypeError unless `EpochMeans.saved` can have returned this value."""
    sums, counts, size = saved["sums"], saved["counts"], saved.get("epoch_size", 1)
    if not (isinstance(sums, dict) and isinstance(counts, dict) and sums.keys() == counts.keys()):
        raise ValueError("epoch_means: sums and counts have different metrics")
    if not all(isinstance(value, (int, float)) for value in sums.values()):
        raise TypeError("epoch_means: sums are not numbers")
    if not all(isinstance(count, int) and count > 0 for count in (*counts.values(), size)):
        raise TypeError("epoch_means: counts or epoch_size are not numbers above 0")
