"""Batches of arrays that follow from the step alone, so that a resumed run goes on with exactly the next examples."""

from __future__ import annotations

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
        arrays: any pytree of arrays, or memory maps, whose leading axis is the example.
        batch_size: examples in a batch, over the whole pod.
        seed: seed of the order.
        sharding: layout of the batch over the devices of the pod; a batch is then a tree of global arrays. Without it a batch
            is a tree of numpy arrays, with this process's part of the examples: the p-th of n equal parts.

    Raises:
        ValueError: the arrays are of different lengths, there are none, or the processes cannot share a batch equally.
    """

    def __init__(
        self, arrays: Any, batch_size: int, *, seed: int = 0, sharding: jax.sharding.Sharding | None = None
    ) -> None:
        lengths = {len(array) for array in jax.tree.leaves(arrays)}
        if len(lengths) != 1 or lengths == {0}:
            raise ValueError(f"podrun.data: arrays of one length are needed, not of {sorted(lengths)} examples")
        processes = current().env.num_processes
        if batch_size < 1 or (sharding is None and batch_size % processes):
            raise ValueError(f"podrun.data: a batch of {batch_size} cannot be shared by {processes} processes equally")
        self.size = lengths.pop()
        """Number of examples in an epoch."""
        self.batch_size = batch_size
        self._arrays = arrays
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
        return jax.tree.map(lambda array: self._take(array, indices), self._arrays)

    def _take(self, array: Any, indices: Rows) -> Any:
        if self._sharding is None:
            return np.asarray(array[indices[self._rows]])

        def part(index: tuple[slice, ...] | None) -> Rows:
            assert index is not None
            return np.asarray(array[indices[index[0]]])[(slice(None), *index[1:])]

        return jax.make_array_from_callback((self.batch_size, *array.shape[1:]), self._sharding, part)
