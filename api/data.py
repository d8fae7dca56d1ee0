"""Batches of examples that follow from the step alone, so that a resumed run goes on with exactly the next examples."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from podrun.runtime.data.pipeline import ShuffledOrder, process_rows

from .session import current

Rows = np.ndarray[Any, Any]


class Batches:
    """Batches of examples in a random order of each epoch: `batches[step]` for the steps 1, 2, 3 ...

    A step's global batch is the same for any number of processes. The batch after the one that was asked for is made ahead,
    in a thread.

    Args:
        examples: any pytree of arrays or memory maps whose leading axis is the example. In place of an array, or of the whole
            tree, may be any object with a length and items by number, such as a data source of grain or a dataset of h5py;
            an item is an example, any pytree of arrays and numbers, of the same shapes in all. (A list is a pytree of its
            own.) Only what a batch needs is read.
        batch_size: examples in a batch, over the whole pod.
        seed: seed of the order.
        sharding: layout of the batch over the devices of the pod; a batch is then a tree of global arrays. Without it a batch
            is a tree of numpy arrays, with this process's part of the examples: the p-th of n equal parts.

    Raises:
        ValueError: the arrays are of different lengths, there are none, or the processes cannot share a batch equally.
        TypeError: something has no length, or no items.
    """

    def __init__(
        self, examples: Any, batch_size: int, *, seed: int = 0, sharding: jax.sharding.Sharding | None = None
    ) -> None:
        lengths = {_length(source) for source in jax.tree.leaves(examples)}
        if len(lengths) != 1 or lengths == {0}:
            raise ValueError(f"podrun.data: arrays of one length are needed, not of {sorted(lengths)} examples")
        processes = current().env.num_processes
        if batch_size < 1 or (sharding is None and batch_size % processes):
            raise ValueError(f"podrun.data: a batch of {batch_size} cannot be shared by {processes} processes equally")
        self.size = lengths.pop()
        """Number of examples in an epoch."""
        self.batch_size = batch_size
        self._examples = examples
        self._sharding = sharding
        self._order = ShuffledOrder(self.size, seed)
        self._rows = process_rows(batch_size, current().env.process_id, processes)
        self._thread = ThreadPoolExecutor(1, "podrun-data")
        self._ahead: tuple[int, Future[Any]] | None = None

    def __getitem__(self, step: int) -> Any:
        """Return the batch of a step. Raises IndexError for a step below 1."""
        if step < 1:
            raise IndexError("steps count from 1 on")
        ahead, self._ahead = self._ahead, None
        batch = ahead[1] if ahead and ahead[0] == step else self._thread.submit(self._make, step)
        self._ahead = step + 1, self._thread.submit(self._make, step + 1)
        return batch.result()

    def _make(self, step: int) -> Any:
        indices, _ = self._order.run((step - 1) * self.batch_size, self.batch_size)
        if self._sharding is None:
            return _gather(self._examples, indices[self._rows])
        rows = functools.cache(lambda first, end: jax.tree.leaves(_gather(self._examples, indices[first:end])))
        like, structure = jax.tree.flatten(_gather(self._examples, indices[:1]))
        laid_out = [self._lay_out(leaf.shape[1:], number, rows) for number, leaf in enumerate(like)]
        return jax.tree.unflatten(structure, laid_out)

    def _lay_out(self, shape: tuple[int, ...], number: int, rows: Callable[[int, int], list[Rows]]) -> jax.Array:
        """Return the global array of the leaf `number`; `rows` gives the leaves of some rows of the batch."""

        def part(index: tuple[slice, ...] | None) -> Rows:
            assert index is not None
            first, end, _ = index[0].indices(self.batch_size)
            return rows(first, end)[number][(slice(None), *index[1:])]

        assert self._sharding is not None
        return jax.make_array_from_callback((self.batch_size, *shape), self._sharding, part)


def _length(source: Any) -> int:
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise TypeError(
            f"podrun.data: {type(source).__name__} has no length and no items; "
            "give arrays, memory maps, or objects with `__len__` and `__getitem__`"
        )
    return len(source)


def _gather(examples: Any, indices: Rows) -> Any:
    """Return the examples `indices`, int64[B], as a tree of numpy arrays [B, ...]."""
    return jax.tree.map(lambda source: _read(source, indices), examples)


def _read(source: Any, indices: Rows) -> Any:
    if isinstance(source, np.ndarray | jax.Array):
        return np.asarray(source[indices])
    numbers = indices.tolist()
    at_once = getattr(source, "__getitems__", None)  # of grain's sources
    items = at_once(numbers) if at_once else [source[number] for number in numbers]
    return jax.tree.map(lambda *values: np.stack(values), *items)
