"""Compute the means of the metrics of each epoch's steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_OF_THE_STEP = ("grad_norm", "learning_rate")
"""Metrics that are about one step only, so that a mean makes no sense."""


@dataclass
class EpochMeans:
    """Add up the metrics of steps until an epoch is over. The sums are saved with a checkpoint.

    A step belongs to the epoch in which its last example is: without `drop_last` a batch may begin in the one before.
    """

    epoch_size: int
    """Number of examples in an epoch."""
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Number of steps added up, by metric. Some metrics exist for logged steps only."""

    def epoch_of(self, position: int, batch_size: int) -> int | None:
        """Return the epoch, from 1 on, that ends with the step that has consumed `position` examples; None if none ends."""
        epoch = position // self.epoch_size
        return epoch if epoch > (position - batch_size) // self.epoch_size else None

    def position_from(self, saved: dict[str, Any] | None, position: int, batch_size: int) -> int:
        """Return `position`, at which `saved` was saved, moved to the start of a batch of its epoch.

        Only with `drop_last`, whose epochs end with a batch, and have another size with another one. An epoch that has not
        ended has a batch left, which ends it.
        """
        epoch, place = divmod(position, saved.get("epoch_size", self.epoch_size) if saved else self.epoch_size)
        return epoch * self.epoch_size + min(-(-place // batch_size) * batch_size, self.epoch_size - batch_size)

    def add(self, metrics: dict[str, float]) -> None:
        """Add a step's metrics, each the mean over its batch; those of the step itself, such as its rate, are left out."""
        for name, value in metrics.items():
            if name not in _OF_THE_STEP:
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """Return the means, and begin the next epoch."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means

    def saved(self) -> dict[str, Any]:
        """Return the sums of an unfinished epoch, as JSON can hold them without loss."""
        return {"sums": dict(self.sums), "counts": dict(self.counts), "epoch_size": self.epoch_size}

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Go on from `saved`; None if nothing was saved."""
        if saved is not None:
            self.sums = dict(saved["sums"])
            self.counts = {name: int(count) for name, count in saved["counts"].items()}


def check_saved(saved: Any) -> None:
    """Raise ValueError, KeyError or TypeError unless this can be a value of `EpochMeans.saved`."""
    sums, counts, size = saved["sums"], saved["counts"], saved.get("epoch_size", 1)
    if not (isinstance(sums, dict) and isinstance(counts, dict) and sums.keys() == counts.keys()):
        raise ValueError("epoch_means: sums and counts are not of the same metrics")
    if not all(isinstance(value, (int, float)) for value in sums.values()):
        raise TypeError("epoch_means: sums are no numbers")
    if not all(isinstance(count, int) and count > 0 for count in (*counts.values(), size)):
        raise TypeError("epoch_means: counts or epoch_size are no numbers above 0")
