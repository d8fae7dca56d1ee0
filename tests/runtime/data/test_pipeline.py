"""The examples that a process sees, and the thread that keeps batches ready."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Batch
from podrun.runtime.data.pipeline import (
    Constant,
    Prefetcher,
    ShuffledOrder,
    TrainBatches,
    evaluation_batches,
    evaluation_shapes,
    full_batch,
    padded,
    process_rows,
    step_shapes,
)
from podrun.runtime.tasks import make_task

from ..array_jobs import everything, job

Array = np.ndarray[Any, Any]

LIMIT = 60  # seconds after which a thread that should have acted counts as stuck


class Numbers:
    """Examples that say which they are, in which epoch; `weights` as for tokens, one per example and column."""

    def __init__(self, size: int) -> None:
        self.size = size

    def gather(self, indices: Array, epochs: Array) -> Batch:
        assert indices.min() >= 0
        assert indices.max() < self.size
        return {"index": indices.copy(), "epoch": epochs.copy(), "weights": np.ones((len(indices), 2), np.float32)}


# --- order ----------------------------------------------------------------------------------------------------------


def order_of(size: int, seed: int, first: int, count: int) -> tuple[list[int], list[int]]:
    indices, epochs = ShuffledOrder(size, seed).examples(np.arange(first, first + count))
    return indices.tolist(), epochs.tolist()


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_an_epoch_has_every_example_once(size: int) -> None:
    """Each epoch is a permutation of the whole set."""
    for epoch in range(3):
        indices, epochs = order_of(size, 0, epoch * size, size)
        assert sorted(indices) == list(range(size))
        assert epochs == [epoch] * size


def test_epochs_differ() -> None:
    """No two epochs have the same order, and none has the order of the set itself."""
    orders = {tuple(order_of(100, 0, epoch * 100, 100)[0]) for epoch in range(5)} | {tuple(range(100))}
    assert len(orders) == 6


def test_the_order_follows_from_the_seed() -> None:
    """Equal seeds give equal orders, another seed another one."""
    assert order_of(100, 3, 0, 250) == order_of(100, 3, 0, 250)
    assert order_of(100, 3, 0, 250) != order_of(100, 4, 0, 250)


def test_a_batch_across_an_epoch_border() -> None:
    """It has the last examples of one epoch and the first of the next."""
    first, second = order_of(8, 1, 0, 8)[0], order_of(8, 1, 8, 8)[0]
    assert order_of(8, 1, 6, 5) == (first[6:] + second[:3], [0, 0, 1, 1, 1])


def test_a_set_smaller_than_a_batch() -> None:
    """A batch then spans several epochs, each complete."""
    indices, epochs = order_of(3, 1, 0, 10)
    assert epochs == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert [sorted(indices[i : i + 3]) for i in (0, 3, 6)] == [[0, 1, 2]] * 3


def test_positions_may_be_read_in_any_order() -> None:
    """The example at a position does not depend on what was read before."""
    order = ShuffledOrder(10, 5)
    for first in (95, 0, 42, 41, 8, 95):
        assert order.examples(np.arange(first, first + 6))[0].tolist() == order_of(10, 5, first, 6)[0]


@pytest.mark.parametrize("size", [1, 3, 10, 64])
def test_a_run_of_positions(size: int) -> None:
    """It is what the same positions give one by one, within an epoch and across its border; nobody can change the order."""
    order = ShuffledOrder(size, 5)
    for start in (0, 2, 7, 8, 9, 10, 63):
        indices, epochs = order.run(start, 4)
        assert (indices.tolist(), epochs.tolist()) == order_of(size, 5, start, 4)
    with pytest.raises(ValueError, match="read-only"):
        ShuffledOrder(64, 5).run(0, 4)[0][0] = 1


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_parts_of_all_processes_are_the_global_batch(processes: int) -> None:
    """One after another they have the same rows, in the same order, as the batch of a single process."""
    examples = Numbers(20)
    whole = TrainBatches(examples, ShuffledOrder(examples.size, 7), 8, 0, 1)
    parts = [
        TrainBatches(examples, ShuffledOrder(examples.size, 7), 8, process, processes) for process in range(processes)
    ]
    for position in range(0, 80, 8):
        together = [part.at(position) for part in parts]
        for key, expected in whole.at(position).items():
            np.testing.assert_array_equal(np.concatenate([batch[key] for batch in together]), expected)


@pytest.mark.parametrize(("size", "processes", "parts"), [(8, 3, 3), (8, 3, 6), (8, 1, 3), (2, 3, 6), (64, 3, 12)])
def test_a_batch_that_does_not_divide_is_padded(size: int, processes: int, parts: int) -> None:
    """Its examples come once and in their order; the weights of the rest are 0, and 1 on average."""
    whole = TrainBatches(Numbers(100), ShuffledOrder(Numbers(100).size, 0), size, 0, 1).at(3 * size)
    shares = [
        TrainBatches(Numbers(100), ShuffledOrder(100, 0), size, p, processes, parts).at(3 * size)
        for p in range(processes)
    ]
    assert {len(share["index"]) for share in shares} == {padded(size, parts) // processes}
    index, weights = (np.concatenate([share[key] for share in shares]) for key in ("index", "weights"))
    weights = weights[:, 0]  # of the first of its columns
    assert index[weights > 0].tolist() == whole["index"].tolist()
    assert set(index[weights == 0]) <= {whole["index"][-1]}  # others could hold what no step is to see
    assert weights.mean() == pytest.approx(1)
    assert set(weights[:size]) == {np.float32(padded(size, parts) / size)}


class Partly(Numbers):
    """Examples of which some tokens are trained: as many as the number of the example, of 8."""

    def gather(self, indices: Array, epochs: Array) -> Batch:
        return {"index": indices.copy(), "weights": (np.arange(8) < indices[:, None] % 8).astype(np.float32)}

    def trained(self, indices: Array, epochs: Array) -> int:
        return int((indices % 8).sum())


@pytest.mark.parametrize(("size", "processes", "parts"), [(8, 1, 8), (8, 4, 4), (8, 3, 6), (5, 2, 4)])
def test_the_loss_is_a_mean_over_the_trained_tokens_of_the_whole_batch(size: int, processes: int, parts: int) -> None:
    """Whatever the processes have of it: their weights are 1 on average, and equal for all trained tokens."""
    for at in (0, 3 * size):
        shares = [
            TrainBatches(Partly(40), ShuffledOrder(40, 0), size, process, processes, parts).at(at)
            for process in range(processes)
        ]
        weights = np.concatenate([share["weights"] for share in shares])
        assert weights.mean() == pytest.approx(1)
        assert len(set(weights[weights > 0].tolist())) == 1
    parts_of_all = [full_batch(Partly(21), parts, process, processes)["weights"] for process in range(processes)]
    assert np.concatenate(parts_of_all).mean() == pytest.approx(1)


def test_a_resumed_process_goes_on_with_the_same_batches() -> None:
    """A new object that starts at a position gives what the old one gives there."""
    first = TrainBatches(Numbers(20), ShuffledOrder(Numbers(20).size, 7), 8, 1, 2)
    seen = [first.at(position)["index"].tolist() for position in range(0, 80, 8)]
    second = TrainBatches(Numbers(20), ShuffledOrder(Numbers(20).size, 7), 8, 1, 2)
    assert [second.at(position)["index"].tolist() for position in range(40, 80, 8)] == seen[5:]


def test_rows_of_the_processes() -> None:
    """Each has one run of rows, all of the same length."""
    assert [process_rows(12, process, 3).tolist() for process in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]


# --- the whole set as one batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "parts", "expected"), [(1, 1, 1), (1, 4, 4), (7, 4, 8), (8, 4, 8), (9, 4, 12), (1797, 32, 1824)]
)
def test_padded(size: int, parts: int, expected: int) -> None:
    """The next multiple of `parts`."""
    assert padded(size, parts) == expected


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 21])
def test_the_full_batch_has_every_example_once(size: int, processes: int) -> None:
    """In their order, with equal parts for the processes; the weights are 1 on average, 0 on padding, else equal."""
    parts = [full_batch(Numbers(size), 4, process, processes) for process in range(processes)]
    assert {len(part["index"]) for part in parts} == {padded(size, 4) // processes}
    weights = np.concatenate([part["weights"][:, 0] for part in parts])
    indices = np.concatenate([part["index"] for part in parts])
    assert weights.dtype == np.float32
    assert indices[:size].tolist() == list(range(size))
    assert set(indices[size:]) <= {size - 1}
    assert weights.mean() == pytest.approx(1)
    assert weights[size:].tolist() == [0] * (len(weights) - size)
    assert len(set(weights[:size].tolist())) == 1


def test_a_loss_over_the_padded_batch_is_the_mean_over_the_examples() -> None:
    """Each task's own loss: padding counts nothing, whatever it has in it."""
    for task_name, data_keys in (
        ("classification", {"name": "make_classification", "samples": 21, "features": 20, "informative": 8}),
        ("regression", {"name": "sine", "samples": 26}),
    ):
        config = job(task_name, data_keys, model={"name": "linear", "l2": 0.1})
        data = load_dataset(config)
        assert data.train.size == 21
        task = make_task(config, data)
        shape = (int(np.prod(data.shape)), data.outputs)
        kernel = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        params = {"head": {"kernel": kernel, "bias": np.ones(data.outputs, np.float32)}}
        loss = jax.jit(task.loss)
        real = everything(data.train)
        expected, _ = loss(params, {"x": real["x"], "y": real["y"]}, jax.random.key(0))
        padded_batch = full_batch(data.train, 8, 0, 1)
        assert len(padded_batch["x"]) == 24
        found, _ = loss(params, padded_batch, jax.random.key(0))
        assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_a_batch_that_stays() -> None:
    """Every step gets the same object: it is put on the devices once."""
    item = object()
    batches = Constant(item)
    assert [batches.get() is item for _ in range(3)] == [True] * 3
    batches.close()


# --- evaluation -----------------------------------------------------------------------------------------------------


def evaluation(size: int, processes: int, limit: int | None) -> list[list[Batch]]:
    """Batches by process; the global batch has 8 rows."""
    return [list(evaluation_batches(Numbers(size), 8, process, processes, limit)) for process in range(processes)]


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 23])
def test_evaluation_has_every_example_once(size: int, processes: int) -> None:
    """Rows with weight are the whole split in order; all processes get the same number of batches of one shape."""
    by_process = evaluation(size, processes, None)
    assert {len(batches) for batches in by_process} == {-(-size // 8)}
    assert {batch["weights"].shape for batches in by_process for batch in batches} == {(8 // processes, 2)}
    seen: list[int] = []
    for parts in zip(*by_process, strict=True):
        for part in parts:
            real = part["weights"][:, 0] > 0
            np.testing.assert_array_equal(part["weights"], np.repeat(real[:, None], 2, axis=1))
            assert set(part["index"][~real]) <= {size - 1}
            seen += part["index"][real].tolist()
    assert seen == list(range(size))


@pytest.mark.parametrize(("limit", "expected"), [(1, 8), (2, 16), (3, 20), (100, 20)])
def test_evaluation_limit(limit: int, expected: int) -> None:
    """At most `limit` batches, from the beginning; no more than there are."""
    batches = evaluation(20, 1, limit)[0]
    weights = np.concatenate([batch["weights"][:, 0] for batch in batches])
    indices = np.concatenate([batch["index"] for batch in batches])
    assert indices[weights > 0].tolist() == list(range(expected))


@pytest.mark.parametrize("limit", [None, 2])
def test_evaluation_on_a_pod_that_does_not_divide_the_batch(limit: int | None) -> None:
    """Each batch has the same examples as on the whole pod."""
    shares = [list(evaluation_batches(Numbers(20), 8, p, 3, limit, parts=6)) for p in range(3)]
    batches = zip(*shares, strict=True)
    real = [
        [i for share in batch for i, w in zip(share["index"], share["weights"][:, 0], strict=True) if w]
        for batch in batches
    ]
    assert real == [list(range(8)), list(range(8, 16)), list(range(16, 20))][:limit]


def test_evaluation_keeps_the_weights_of_an_example() -> None:
    """Weights that the examples have themselves are kept where they are not padding."""

    class Weighted(Numbers):
        def gather(self, indices: Array, epochs: Array) -> Batch:
            return {"weights": (indices + 1).astype(np.float32)}

    (batch,) = evaluation_batches(Weighted(3), 4, 0, 1, None)
    assert batch["weights"].tolist() == [1, 2, 3, 0]


# --- prefetcher -----------------------------------------------------------------------------------------------------


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def taken(prefetcher: Prefetcher[Any]) -> Any:
    item = prefetcher.get()
    prefetcher.refill()
    return item


def test_prefetched_items_come_in_order() -> None:
    """One item for each position, from `start` on by `stride`, made in a thread of its own."""
    prefetcher = Prefetcher(lambda position: (position, threading.current_thread().name), start=24, stride=8)
    assert [taken(prefetcher) for _ in range(50)] == [(position, "prefetch") for position in range(24, 424, 8)]
    prefetcher.close()


def test_an_exception_is_raised_for_its_item() -> None:
    """Items before it can still be read; then `get` raises what `make` raised, and no further item is made."""
    error = UserError("no item 3")
    asked = []

    def make(position: int) -> int:
        asked.append(position)
        if position == 3:
            raise error
        return position

    prefetcher = Prefetcher(make, start=0, stride=1)
    assert [taken(prefetcher) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UserError) as raised:
        prefetcher.get()
    assert raised.value is error
    prefetcher.close()
    assert prefetch_threads() == []
    assert asked == [0, 1, 2, 3]


def test_no_item_is_made_before_it_is_asked_for() -> None:
    """`depth` items at the start, one for each `refill`; `close` ends the thread that waits to be asked."""
    made = threading.Semaphore(0)

    def make(position: int) -> int:
        made.release()
        return position

    prefetcher = Prefetcher(make, start=0, stride=1, depth=2)
    (thread,) = prefetch_threads()
    assert prefetcher.get() == 0
    prefetcher.refill()
    for _ in range(3):
        assert made.acquire(timeout=LIMIT)
    prefetcher.close()
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert made.acquire(blocking=False) is False


# --- shapes before there is a batch ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch_size", "parts", "rows"), [(6, 1, 6), (6, 4, 8), ("all", 1, 10), ("all", 4, 12)])
def test_the_shapes_of_a_batch_are_those_of_the_batch(batch_size: Any, parts: int, rows: int) -> None:
    """A step is compiled for them before the first batch: the number of rows is padded, the dtypes are the examples'."""
    for shapes in (step_shapes(Numbers(10), batch_size, parts), evaluation_shapes(Numbers(10), batch_size, parts)):
        assert {name: (value.shape, value.dtype.name) for name, value in shapes.items()} == {
            "index": ((rows,), "int64"),
            "epoch": ((rows,), "int64"),
            "weights": ((rows, 2), "float32"),
        }
