"""The batches that training goes on with, made without a training."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.streamed import Share, Streamed
from podrun.runtime.feed import TrainFeed, open_feed
from podrun.runtime.job_counts import JobCounts
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.state import Batch

JOB = {"task": "regression", "data": {"name": "sine", "samples": 50}, "batch_size": 8, "steps": 6}
"""40 of the samples are trained on."""


class Parts:
    """A strategy for feeds: it leaves batches in memory as they are."""

    def __init__(self, shares: int = 1) -> None:
        self.shares = shares
        self.data_shard = (0, 1)

    def shard(self, batch: Batch) -> Batch:
        return batch


def feed(at: int = 0, shares: int = 1, **keys: Any) -> TrainFeed:
    """Return the batches of a job after step `at`."""
    config = Config.model_validate({**JOB, **keys})
    data = load_dataset(config)
    counts = JobCounts.at_start(config, data)
    for _ in range(at):
        counts.advance()
    return open_feed(config, data.train, cast(Strategy, Parts(shares)), counts, None, lambda note: None)


def taken(feed: TrainFeed, count: int) -> list[Batch]:
    batches = []
    for _ in range(count):
        batches.append(feed.batches.get(lambda: None))
        feed.batches.refill()
    feed.batches.close()
    return batches


def test_batches_go_on_at_the_position() -> None:
    every, rest = taken(feed(), 4), taken(feed(at=2), 2)
    for whole, resumed in zip(every[2:], rest, strict=True):
        assert all(np.array_equal(whole[name], resumed[name]) for name in whole)


def test_a_batch_is_padded_to_the_parts_of_the_pod() -> None:
    [batch] = taken(feed(shares=3), 1)
    assert batch["weights"].tolist() == [1.125] * 8 + [0.0]


def test_a_batch_of_all_examples_is_always_the_same() -> None:
    first, second = taken(feed(batch_size="all"), 2)
    assert first is second
    assert len(first["weights"]) == 40


def test_only_iterators_have_a_state() -> None:
    one = feed()
    assert one.streams_at(8) is None
    one.batches.close()


class Counting:
    """An iterator of batches of one number each, which counts on."""

    def __init__(self, share: Share) -> None:
        self.rows, self.at = share.rows, 0

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> Batch:
        self.at += 1
        return {"x": np.full(self.rows, self.at, np.int32)}

    def get_state(self) -> dict[str, int]:
        return {"at": self.at}

    def set_state(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def streamed_feed(at: int = 0, states: list[str] | None = None, shares: int = 1) -> TrainFeed:
    config = Config.model_validate(JOB)
    data = Streamed(Counting, {"x": np.int32(0)})
    counts = JobCounts.at_start(config, Dataset(cast(Any, data), cast(Any, data), b""))
    for _ in range(at):
        counts.advance()
    return open_feed(config, cast(Any, data), cast(Strategy, Parts(shares)), counts, states, lambda note: None)


def test_an_iterator_goes_on_from_its_state() -> None:
    """Also if batches were read ahead of the step that was saved."""
    first = streamed_feed()
    assert [batch["x"][0] for batch in taken(first, 3)] == [1, 2, 3]
    states = first.streams_at(2 * 8)
    assert [batch["x"][0] for batch in taken(streamed_feed(2, states), 2)] == [3, 4]


@pytest.mark.parametrize(
    ("at", "shares", "words"),
    [(2, 1, "the checkpoint has no state of its iterator"), (0, 3, "batch_size 8 is no multiple of 3")],
)
def test_an_iterator_that_cannot_go_on_is_refused(at: int, shares: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        streamed_feed(at, shares=shares)
