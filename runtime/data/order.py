"""The order in which a job sees its examples, with the batches that it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..config import Config
from ..contract import UserError
from .base import Dataset, Order
from .mixture import MixtureOrder, Stage, history, planned_stages
from .pipeline import ShuffledOrder

Array = np.ndarray[Any, Any]

Range = tuple[int, int]
"""Positions in the order that are left out: the first, and the one after the last."""
_END = 1 << 62
"""A position behind all others."""


def within(ranges: Sequence[Range], positions: Array) -> Array:
    """Convert positions in an order without the ranges to positions in the whole order, int64[B]."""
    starts, lengths = (np.array(each, np.int64) for each in ([s for s, _ in ranges], [e - s for s, e in ranges]))
    skipped = np.concatenate([[0], np.cumsum(lengths)])
    seen = starts - skipped[:-1]  # examples before each range
    places: Array = positions + skipped[np.searchsorted(seen, positions, "right")]
    return places


class WithoutRanges:
    """An order without some ranges of it: position n is the n-th example that is not left out.

    Args:
        order: the whole order.
        ranges: the ranges, in order, without overlaps.
    """

    def __init__(self, order: Order, ranges: Sequence[Range]) -> None:
        self._order = order
        self._ranges = tuple(ranges)

    def examples(self, positions: Array) -> tuple[Array, Array]:
        """Return (indices, epochs), int64[B] each, of the examples at `positions`, int64[B]."""
        return self._order.examples(within(self._ranges, positions))

    def run(self, start: int, count: int) -> tuple[Array, Array]:
        """Return `examples` at the `count` positions from `start` on."""
        first, last = within(self._ranges, np.array([start, start + count - 1])).tolist()
        if last - first == count - 1:
            return self._order.run(first, count)
        return self.examples(np.arange(start, start + count))


class JobOrder:
    """The order of a job's examples. On a resume, call `resume` first.

    Args:
        config: the job.
        data: its data.

    Attributes:
        stages: weights of a mixture by position in the whole order; empty if the data is not a mixture.
        skipped: ranges of the whole order that are left out.
    """

    def __init__(self, config: Config, data: Dataset) -> None:
        self._config, self._data = config, data
        self.stages: tuple[Stage, ...] = planned_stages(config)
        self.skipped = planned_ranges(config)

    def resume(self, stages: Sequence[Stage], skipped: Sequence[Range], position: int, step: int) -> None:
        """Continue from a checkpoint. The part of the order before the checkpoint stays as it was.

        Args:
            stages: the value of `stages` at the save.
            skipped: the value of `skipped` at the save.
            position: number of examples consumed.
            step: number of steps done.

        Raises:
            UserError: this job leaves out batches that the checkpoint has seen, or counts batches of another size.
        """
        batch = self._config.batch_size
        if (self.skipped or len(self.stages) > 1) and batch != "all" and position != step * batch:
            keys = " and ".join(["data.skip"] * bool(self.skipped) + ["data.weights_from"] * (len(self.stages) > 1))
            raise UserError(
                f"{keys} counts batches of {batch} examples, but the {step} steps of the checkpoint had {position:,}: "
                f"batch_size was changed. Give the earlier batch_size, or remove {keys}, which does not undo past steps"
            )
        seen = int(within(skipped, np.array([position - 1]))[0]) + 1 if position else 0
        past = _clipped(skipped, 0, seen)
        if late := _without(_clipped(self.skipped, 0, seen), past):
            assert batch != "all"
            shown = ", ".join(f"[{start // batch + 1}, {end // batch}]" for start, end in late)
            raise UserError(
                f"data.skip: the checkpoint has been trained on the batches {shown} already; resume from an earlier one, or "
                "remove them from data.skip"
            )
        self.skipped = _merged([*past, *_clipped(self.skipped, seen, _END)])
        if stages and self.stages:
            self.stages = history(stages, self.stages, seen)

    def order(self) -> Order:
        """Return the order, without the ranges that are left out."""
        order = self._whole
        return WithoutRanges(order, self.skipped) if self.skipped else order

    def source_epochs(self, position: int) -> dict[str, float]:
        """Return how often each source of a mixture was passed through, by name, before a position."""
        order = self._whole
        if not isinstance(order, MixtureOrder):
            return {}
        return order.epochs_before(int(within(self.skipped, np.array([position]))[0]))

    @cached_property
    def _whole(self) -> Order:
        data, seed = self._data, self._config.seed
        if self.stages:
            return MixtureOrder({name: source.size for name, source in data.sources.items()}, self.stages, seed)
        return ShuffledOrder(data.train.size, seed, self._config.epoch_size(data.train.size))


def _clipped(ranges: Sequence[Range], start: int, end: int) -> list[Range]:
    """Return the parts of ranges that lie between two positions."""
    parts = [(max(first, start), min(last, end)) for first, last in ranges]
    return [(first, last) for first, last in parts if first < last]


def _merged(ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges in order, joined where they touch."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _without(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the parts of ranges that lie in none of the others."""
    for start, end in others:
        ranges = [*_clipped(ranges, 0, start), *_clipped(ranges, end, _END)]
    return sorted(ranges)


def planned_ranges(config: Config) -> list[Range]:
    """Return the ranges of the order that the job's key `data.skip` leaves out."""
    skip: tuple[tuple[int, int], ...] = getattr(config.data, "skip", ())
    batch = config.batch_size
    if not skip or batch == "all":
        return []
    return _merged([((first - 1) * batch, last * batch) for first, last in skip])
