"""Map a position in training to each process's examples, and prefetch batches in a thread.

The position is the number of examples that the whole pod has consumed. The global batch at a position is a slice of one
seeded order, the same for any number of processes; process p of n takes the p-th of n equal parts of it. So the device with
a given global index gets the same examples however devices are spread over hosts, and resuming needs only the position.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from .base import Batch, Examples, Order, PartlyTrained

T = TypeVar("T")
Array = np.ndarray[Any, Any]
_POLL = 0.5  # seconds


class ShuffledOrder:
    """The order of examples: each epoch is another permutation of the set.

    Args:
        size: number of examples in the set.
        seed: seed of the permutations.
        epoch_size: number of examples in an epoch: the first ones of its permutation; by default all.
    """

    def __init__(self, size: int, seed: int, epoch_size: int | None = None) -> None:
        self._set_size = size
        self._size = size if epoch_size is None else epoch_size
        self._seed = seed
        self._permutations: dict[int, Array] = {}

    def examples(self, positions: Array) -> tuple[Array, Array]:
        """Return (indices, epochs), int64[B] each, of the examples at `positions`, int64[B]."""
        epochs, places = np.divmod(positions, self._size)
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            indices[here] = self._permutation(int(epoch))[places[here]]
        return indices, epochs

    def run(self, start: int, count: int) -> tuple[Array, Array]:
        """Return `examples` at the `count` positions from `start` on. Within one epoch, indices are a read-only slice."""
        epoch, place = divmod(start, self._size)
        if place + count > self._size:
            return self.examples(np.arange(start, start + count))
        return self._permutation(epoch)[place : place + count], np.full(count, epoch)

    def _permutation(self, epoch: int) -> Array:
        if epoch not in self._permutations:
            # Keep two: a batch spans two epochs at most, unless the set is smaller than a batch.
            self._permutations = {e: p for e, p in self._permutations.items() if e == epoch - 1}
            permutation = np.random.default_rng((self._seed, epoch)).permutation(self._set_size)[: self._size]
            permutation.flags.writeable = False  # batches get slices of it
            self._permutations[epoch] = permutation
        return self._permutations[epoch]


class TrainBatches:
    """This process's part of the global batch at any position.

    A batch size that is not a multiple of `parts`, as on a pod that has lost a host, is padded as in `full_batch`.

    Args:
        examples: the training set.
        order: which example stands at each position.
        batch_size: number of examples in the global batch.
        process: number of this process.
        num_processes: number of processes that share a batch.
        parts: number of equal parts that the global batch must be divisible into.
    """

    def __init__(
        self, examples: Examples, order: Order, batch_size: int, process: int, num_processes: int, parts: int = 1
    ) -> None:
        self._examples = examples
        self._order = order
        self._batch_size = batch_size
        size = padded(batch_size, parts)
        self._rows = process_rows(size, process, num_processes)
        self._weights: Array | None = None
        if size > batch_size:
            self._weights = padding_weights(self._rows, batch_size, size)
            self._rows = self._rows.clip(max=batch_size - 1)

    def at(self, position: int) -> Batch:
        if self._weights is None:
            batch = self._examples.gather(*self._order.run(position + int(self._rows[0]), len(self._rows)))
            return self._of_trained(batch, position)
        batch = self._examples.gather(*self._order.examples(position + self._rows))
        return _weighted(self._of_trained(batch, position), self._weights)

    def _of_trained(self, batch: Batch, position: int) -> Batch:
        """Scale the weights of tokens so that their mean over the global batch at `position` is 1."""
        if not isinstance(self._examples, PartlyTrained):
            return batch
        trained = self._examples.trained(*self._order.run(position, self._batch_size))
        return _scaled(batch, self._batch_size, trained)


def full_batch(examples: Examples, parts: int, part: int, num_parts: int) -> Batch:
    """Return the `part`-th of `num_parts` equal parts of a batch of the whole set, padded to a multiple of `parts`.

    Padding repeats the last example. `weights`, float32[B], is 0 on padding, and its mean over the whole batch is 1.
    """
    size = padded(examples.size, parts)
    rows = process_rows(size, part, num_parts)
    at = rows.clip(max=examples.size - 1)
    batch = examples.gather(at, np.zeros_like(at))
    if isinstance(examples, PartlyTrained):
        every = np.arange(examples.size)
        batch = _scaled(batch, examples.size, examples.trained(every, np.zeros_like(every)))
    return _weighted(batch, padding_weights(rows, examples.size, size))


def _scaled(batch: Batch, size: int, trained: int) -> Batch:
    """Scale token weights so that their mean over `size` examples is 1. Before, they are 1 for `trained` tokens, else 0."""
    weights = batch["weights"]
    return {**batch, "weights": weights * np.float32(size * weights.shape[1] / max(1, trained))}


def _weighted(batch: Batch, of_examples: Array) -> Batch:
    """Return the batch with these example weights, float32[B]. They multiply the token weights if the batch has any."""
    of_tokens = batch.get("weights")
    if of_tokens is None or of_tokens.ndim == 1:
        return {**batch, "weights": of_examples}
    return {**batch, "weights": of_tokens * of_examples[:, None]}


def padding_weights(rows: Array, count: int, size: int) -> Array:
    """Return the weights, float32[B], of `rows` of a batch of `size` rows: 0 from row `count` on; the batch's mean is 1."""
    return np.where(rows < count, np.float32(size / count), np.float32(0))


def batch_shapes(examples: Examples, size: int) -> Batch:
    """Return arrays with the shapes and dtypes of a training batch of `size` examples. They take no memory."""
    one = examples.gather(np.zeros(1, np.int64), np.zeros(1, np.int64))
    return {name: np.broadcast_to(value, (size, *value.shape[1:])) for name, value in one.items()}


def step_shapes(examples: Examples, batch_size: int | Literal["all"], parts: int) -> Batch:
    """Return arrays with the shapes and dtypes of a step's global batch, padded to a multiple of `parts`."""
    count = examples.size if batch_size == "all" else batch_size
    size = padded(count, parts)
    batch = batch_shapes(examples, size)
    if (batch_size == "all" or size > count) and batch.get("weights", np.zeros(0)).ndim == 1:
        batch["weights"] = np.broadcast_to(np.float32(1), size)
    return batch


def evaluation_shapes(examples: Examples, batch_size: int | Literal["all"], parts: int) -> Batch:
    """Return arrays with the shapes and dtypes of a global batch of an evaluation, of the validation set `examples`."""
    size = padded(examples.size if batch_size == "all" else batch_size, parts)
    return {"weights": np.broadcast_to(np.float32(1), size), **batch_shapes(examples, size)}


def padded(size: int, parts: int) -> int:
    """Return the smallest multiple of `parts` that is not below `size`."""
    return -(-size // parts) * parts


def evaluation_batches(
    examples: Examples, batch_size: int, process: int, num_processes: int, limit: int | None, parts: int = 1
) -> Iterator[Batch]:
    """Yield this process's part of each evaluation batch, in order: `limit` batches, or the whole split if None.

    All processes get the same number of batches of the same shape, [batch_size / num_processes, ...]. Padding, at the end
    of the split or to make a batch divisible by `parts`, repeats the last example with weight 0. Examples of a user's source
    that have no weights count 1 each.
    """
    count = -(-examples.size // batch_size)
    rows = process_rows(padded(batch_size, parts), process, num_processes)
    for number in range(count if limit is None else min(limit, count)):
        at = number * batch_size + rows
        batch = examples.gather(at.clip(max=examples.size - 1), np.zeros_like(at))
        weights = batch.get("weights", np.ones(len(at), np.float32))
        real = ((at < examples.size) & (rows < batch_size)).reshape(-1, *[1] * (weights.ndim - 1))
        yield {**batch, "weights": weights * real}


def process_rows(batch_size: int, process: int, num_processes: int) -> Array:
    """Return a process's rows of a global batch, int64: the `process`-th of `num_processes` equal parts."""
    share = batch_size // num_processes
    return np.arange(process * share, (process + 1) * share)


class Constant(Generic[T]):
    """A replacement for `Prefetcher` that returns the same item at every step: the whole training set as one batch."""

    def __init__(self, item: T) -> None:
        self._item = item

    def get(self, poll: Callable[[], None] = lambda: None) -> T:
        return self._item

    def refill(self) -> None:
        pass

    def close(self) -> None:
        pass


class Prefetcher(Generic[T]):
    """Call `make(position)` in a thread for one position after another, `depth` items ahead of the reader.

    The reader calls `get`, dispatches a step, then calls `refill` for the next item. During the dispatch the thread would
    compete with the reader for the interpreter, which is noticeable in steps of a few milliseconds. SimpleQueue is used
    because it is written in C.
    """

    def __init__(self, make: Callable[[int], T], start: int, stride: int, depth: int = 2) -> None:
        self._make = make
        self._next, self._stride = start, stride
        self._wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._closed = False
        for _ in range(depth):
            self.refill()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def get(self, poll: Callable[[], None] = lambda: None) -> T:
        """Return the next item. Calls `poll` from time to time while it waits. Raises what `make` raised."""
        while True:
            try:
                item, error = self._ready.get(timeout=_POLL)
                break
            except queue.Empty:
                poll()
        if error is not None:
            raise error
        assert item is not None
        return item

    def refill(self) -> None:
        """Request one more item, to replace the one that was taken."""
        self._wanted.put(self._next)
        self._next += self._stride

    def close(self) -> None:
        self._closed = True
        self._wanted.put(None)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while (position := self._wanted.get()) is not None and not self._closed:
            try:
                self._ready.put((self._make(position), None))
            except BaseException as error:
                self._ready.put((None, error))
                return
