"""The thread that makes batches: how far ahead, in which order, and how it ends."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from podrun.runtime.data.pipeline import Constant, Prefetcher, ShuffledOrder, full_batch, padded, process_rows

pytestmark = pytest.mark.timeout(60)


def test_nothing_is_made_after_the_end() -> None:
    """A batch in the making is finished, and no other one begun."""
    gate, made = threading.Event(), []

    def make(position: int) -> int:
        made.append(position)
        assert gate.wait(20)
        return position

    batches = Prefetcher(make, start=16, stride=8, depth=3)
    closing = threading.Thread(target=batches.close)
    closing.start()
    for _ in range(2000):
        if batches._closed and made:
            break
        closing.join(0.01)
    gate.set()
    closing.join(20)
    batches._thread.join(20)
    assert made == [16] and not batches._thread.is_alive() and batches._thread.daemon


def test_batches_come_in_order_and_no_further_ahead_than_they_are_asked_for() -> None:
    """One is made for each that is taken, and asked for again."""
    made: list[int] = []
    batches = Prefetcher(lambda position: made.append(position) or position, start=0, stride=8)  # type: ignore[func-returns-value]
    assert [batches.get(), batches.get()] == [0, 8]
    batches.refill()
    assert batches.get() == 16 and made == [0, 8, 16]
    batches.close()
    assert not batches._thread.is_alive()


def test_an_error_comes_in_the_place_of_its_batch() -> None:
    """Batches before it are delivered, and nothing is made after it."""

    def make(position: int) -> int:
        if position == 2:
            raise OSError("no such file")
        return position

    batches = Prefetcher(make, start=0, stride=1, depth=4)
    assert [batches.get(), batches.get()] == [0, 1]
    with pytest.raises(OSError, match="no such file"):
        batches.get()
    batches._thread.join(20)
    assert not batches._thread.is_alive()
    batches.close()


def test_a_constant_is_always_there() -> None:
    """It needs no thread."""
    source = Constant("x")
    source.refill()
    source.close()
    assert [source.get(), source.get()] == ["x", "x"]


def test_the_order_is_that_of_earlier_versions() -> None:
    """A resumed run goes on in it."""
    order = ShuffledOrder(6, seed=3, epoch_size=4)
    indices, epochs = order.run(0, 8)
    expected = [np.random.default_rng((3, epoch)).permutation(6)[:4] for epoch in (0, 1)]
    assert indices.tolist() == np.concatenate(expected).tolist() and epochs.tolist() == [0] * 4 + [1] * 4
    for start, count in ((0, 4), (4, 4), (3, 1), (3, 2), (2, 7)):
        indices, epochs = order.run(start, count)
        at = np.arange(start, start + count)
        assert indices.tolist() == order.examples(at)[0].tolist() and epochs.tolist() == (at // 4).tolist()
    with pytest.raises(ValueError, match="read-only"):
        order.run(0, 4)[0][0] = 9


class Numbers:
    """Examples that are their own number."""

    size = 5

    def gather(self, indices: np.ndarray, epochs: np.ndarray) -> dict[str, np.ndarray]:
        assert not epochs.any()
        return {"x": indices}


def test_a_full_batch_is_shared_equally() -> None:
    """The last example stands for what is missing, and counts nothing there; the mean over all is that of the set."""
    parts = [full_batch(Numbers(), 3, part, 3) for part in range(3)]
    assert [part["x"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 4]]
    weights = np.concatenate([part["weights"] for part in parts])
    assert weights.dtype == np.float32
    assert weights == pytest.approx([1.2] * 5 + [0.0])
    assert [padded(n, 4) for n in (1, 4, 5, 8)] == [4, 4, 8, 8]
    assert [process_rows(8, p, 4).tolist() for p in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
