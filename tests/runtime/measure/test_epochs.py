"""Epochs: how many steps they are, which examples they have, and the means of their steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data.pipeline import ShuffledOrder
from podrun.runtime.measure.epochs import EpochMeans

from ..array_jobs import job


def config(**keys: Any) -> Config:
    given = {"task": "regression", "data": "sine", "batch_size": 8, "optimizer": "adam", **keys}
    return Config.model_validate(given)


@pytest.mark.parametrize(
    ("keys", "examples", "steps"),
    [
        ({"epochs": 2}, 32, 8),
        ({"epochs": 2}, 33, 9),  # the last batch goes beyond the second epoch
        ({"epochs": 2, "drop_last": True}, 39, 8),
        ({"epochs": 0.5}, 32, 2),
        ({"epochs": 1}, 5, 1),  # one batch is more than an epoch
        ({"epochs": 3, "batch_size": "all"}, 50, 3),
        ({"steps": 7}, 32, 7),
        ({"steps": 7, "drop_last": True}, 32, 7),
    ],
)
def test_steps_of_epochs(keys: dict[str, Any], examples: int, steps: int) -> None:
    """There are as many steps as the examples of all epochs fill."""
    assert config(**keys).total_steps(examples) == steps


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "neither steps nor epochs is given"),
        ({"steps": 3, "epochs": 2}, r"steps is given as well \(3\); give one of the two"),
        ({"epochs": 0}, "greater than 0"),
    ],
)
def test_length_of_a_job(keys: dict[str, Any], message: str) -> None:
    """It is given once."""
    with pytest.raises(ValidationError, match=message):
        config(**keys)


def test_mistakes_that_only_the_data_shows() -> None:
    """An epoch without a whole batch is the user's to mend."""
    with pytest.raises(UserError, match="5 examples, fewer than batch_size 8"):
        config(epochs=1, drop_last=True).total_steps(5)
    assert job("regression", "sine", schedule={"warmup_steps": 1}).total_steps(32) == 2


def test_dropped_examples_come_in_other_epochs() -> None:
    """Each epoch leaves out others: the order of an epoch is that of the whole set, cut off at its end."""
    size, kept = 10, 8
    order = ShuffledOrder(size, seed=3, epoch_size=kept)
    whole = ShuffledOrder(size, seed=3)
    for epoch in range(20):
        indices, epochs = order.run(epoch * kept, kept)
        assert set(epochs.tolist()) == {epoch}
        assert indices.tolist() == whole.run(epoch * size, kept)[0].tolist()
    everything = np.concatenate([order.run(epoch * kept, kept)[0] for epoch in range(20)])
    assert set(everything.tolist()) == set(range(size))


def means_of(positions: list[int], size: int, batch: int) -> list[int | None]:
    return [EpochMeans(size).epoch_of(position, batch) for position in positions]


def test_which_step_ends_an_epoch() -> None:
    """The one that consumes its last example, also where a batch goes on into the next epoch."""
    assert means_of([4, 8, 12, 16], 8, 4) == [None, 1, None, 2]
    assert means_of([3, 6, 9, 12, 15, 18, 21], 10, 3) == [None, None, None, 1, None, None, 2]
    assert means_of([8, 16], 3, 8) == [2, 5]  # a batch of several epochs


def test_means_go_on_after_a_checkpoint() -> None:
    """Half of an epoch before a checkpoint and half after it have the mean of the whole, bit for bit."""
    values = [{"loss": math.sqrt(i), "accuracy": 1 / (i + 1), "learning_rate": 0.1, "grad_norm": 1.0} for i in range(9)]
    whole, first, second = EpochMeans(9), EpochMeans(9), EpochMeans(9)
    for metrics in values:
        whole.add(metrics)
    for metrics in values[:4]:
        first.add(metrics)
    second.restore(first.saved())
    for metrics in values[4:]:
        second.add(metrics)
    expected = whole.take()
    assert second.take() == expected
    assert expected.keys() == {"loss", "accuracy"}
    assert expected["loss"] == pytest.approx(np.mean([m["loss"] for m in values]))
    assert whole.take() == {}


@pytest.mark.parametrize(
    ("before", "position", "size", "batch", "now"),
    [
        (32, 64, 36, 12, 72),  # two whole epochs stay two
        (36, 48, 32, 16, 48),  # within the second epoch: at its next batch
        (36, 60, 32, 16, 48),  # near its end: at its last
        (32, 48, 32, 16, 48),
        (40, 32, 40, 40, 0),
    ],
)
def test_where_an_epoch_that_drops_examples_goes_on(
    before: int, position: int, size: int, batch: int, now: int
) -> None:
    """In the same epoch at the start of a batch, whatever the batches were before."""
    saved = EpochMeans(before).saved()
    assert EpochMeans(size).position_from(saved, position, batch) == now
