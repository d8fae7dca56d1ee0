"""Batches that are a function of the step only, so that a resumed run continues with exactly the next examples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from podrun.runtime.data.pipeline import ShuffledOrder, process_rows

from .session import current

Rows = np.ndarray[Any, Any]


class Batches:
    """Shuffled batches of examples: `batches[step]` for steps 1, 2, 3, ... Each epoch has another order.

    A step's global batch is the same for any number of processes. The next batch is prefetched in a thread.

    Args:
        examples: a pytree of arrays or memory maps, whose leading axis is the example. An array, or the whole tree, may
            also be an object with `__len__` and `__getitem__`, such as a data source of grain or a dataset of h5py; its
            items are examples, pytrees of arrays and numbers with the same shapes. (A list is treated as a pytree.) Only
            the examples of a batch are read.
        batch_size: number of examples in a batch, over the whole pod.
        seed: seed of the order.
        shuffle: False: in the order of the examples, the same in each epoch, as for an evaluation.
        sharding: sharding of the batch over the pod's devices; batches are then trees of global arrays. Without it, batches
            are trees of numpy arrays with this process's part of the examples, the p-th of n equal parts.

    Raises:
        ValueError: the arrays have different lengths, there are none, or the batch size is not a multiple of the number of
            processes.
        TypeError: a source has no length or no items.
    """

    def __init__(
        self,
        examples: Any,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        sharding: jax.sharding.Sharding | None = None,
    ) -> None:
        lengths = {_length(source) for source in jax.tree.leaves(examples)}
        if len(lengths) != 1 or lengths == {0}:
            raise ValueError(
                f"podrun.data: all arrays must have the same length, but they have {sorted(lengths)} examples"
            )
        processes = current().env.num_processes
        if batch_size < 1 or (sharding is None and batch_size % processes):
            raise ValueError(
                f"podrun.data: a batch of {batch_size} cannot be divided equally over {processes} processes"
            )
        self.size = lengths.pop()
        """Number of examples in an epoch."""
        self.batch_size = batch_size
        self._examples = examples
        self._sharding = sharding
        self._order = ShuffledOrder(self.size, seed) if shuffle else None
        self._rows = process_rows(batch_size, current().env.process_id, processes)
        self._thread = ThreadPoolExecutor(1, "podrun-data")
        self._ahead: tuple[int, Future[Any]] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole batches in an epoch."""
        return self.size // self.batch_size

    def __iter__(self) -> Iterator[Any]:
        """Yield the whole batches of the first epoch, as for an evaluation.

        The last examples are left out if they do not fill a batch.

        Raises ValueError if a batch has more examples than there are.
        """
        if not self.steps_per_epoch:
            raise ValueError(f"podrun.data: a batch of {self.batch_size} is larger than the {self.size} examples")
        return (self[step] for step in range(1, self.steps_per_epoch + 1))

    def __getitem__(self, step: int) -> Any:
        """Return the batch of a step. Raises IndexError if `step` is below 1."""
        if step < 1:
            raise IndexError("steps are counted from 1")
        ahead, self._ahead = self._ahead, None
        batch = ahead[1] if ahead and ahead[0] == step else self._thread.submit(self._make, step)
        self._ahead = step + 1, self._thread.submit(self._make, step + 1)
        return batch.result()

    def _make(self, step: int) -> Any:
        start = (step - 1) * self.batch_size
        if self._order is None:
            indices = np.arange(start, start + self.batch_size) % self.size
        else:
            indices, _ = self._order.run(start, self.batch_size)
        if self._sharding is None:
            return _gather(self._examples, indices[self._rows])
        rows = functools.cache(lambda first, end: jax.tree.leaves(_gather(self._examples, indices[first:end])))
        like, structure = jax.tree.flatten(_gather(self._examples, indices[:1]))
        laid_out = [self._lay_out(leaf.shape[1:], number, rows) for number, leaf in enumerate(like)]
        return jax.tree.unflatten(structure, laid_out)

    def _lay_out(self, shape: tuple[int, ...], number: int, rows: Callable[[int, int], list[Rows]]) -> jax.Array:
        """Return the global array of leaf `number`; `rows(first, end)` returns the leaves of those rows of the batch."""

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
    """Return the examples at `indices`, int64[B], as a tree of numpy arrays [B, ...]."""
    return jax.tree.map(lambda source: _read(source, indices), examples)


def _read(source: Any, indices: Rows) -> Any:
    if isinstance(source, np.ndarray | jax.Array):
        return np.asarray(source[indices])
    numbers = indices.tolist()
    get_items = getattr(source, "__getitems__", None)  # grain's sources have it
    items = get_items(numbers) if get_items else [source[number] for number in numbers]
    return jax.tree.map(lambda *values: np.stack(values), *items)
