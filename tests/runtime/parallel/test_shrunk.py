"""A pod that has lost a host may not divide the batch: it is padded, and everything learned stays the same."""

from __future__ import annotations

import functools

import pytest

from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches
from podrun.runtime.state import Batch, Params

from ...tiers import mostly_long
from ..strategies import SECTIONS, assert_close, dataset, job, make, place, strategy, train
from .reference import initial, plain, text, text_job, text_reference

SIZE = 6  # 4 devices do not divide it


def batches(parts: int, size: int = SIZE) -> list[Batch]:
    order = TrainBatches(dataset().train, ShuffledOrder(dataset().train.size, 0), size, 0, 1, parts=parts)
    return [order.at(size * i) for i in range(3)]


@functools.cache
def expected() -> tuple[Params, list[dict[str, float]]]:
    return plain(job("single"), dataset(), initial()["params"], batches(1))


@pytest.mark.parametrize(
    ("name", "accumulate"),
    mostly_long(
        [(name, accumulate) for accumulate in (1, 2) for name in SECTIONS],
        lambda _, case: case in (("pmap", 1), ("shard_map", 2), ("jit fsdp 2", 2)),
        lambda _, case: case in (("single", 1), ("explicit", 1)),
    ),
)
def test_training_on_padded_batches_is_that_on_the_examples(name: str, accumulate: int) -> None:
    params, history = expected()
    one = strategy(name, accumulate=accumulate, batch_size=SIZE)
    given = batches(one.shares * accumulate)
    assert ("weights" in given[0]) == (one.shares > 1)
    state, metrics = train(one, place(one, initial()), given)
    for values, wanted in zip(metrics, history, strict=True):
        assert {key: values[key] for key in wanted} == pytest.approx(wanted, rel=1e-5)
    assert_close(state.params, params)


@pytest.mark.long
def test_a_language_model_weighs_its_examples() -> None:
    start = text_reference()[0]
    orders = [
        TrainBatches(text().train, ShuffledOrder(text().train.size, 0), SIZE, 0, 1, parts=parts) for parts in (1, 8)
    ]
    _, wanted = plain(text_job("single"), text(), start["params"], [orders[0].at(0)])
    one = make(text_job("pmap"), text())
    _, values = train(one, place(one, start), [orders[1].at(0)])
    assert {key: values[0][key] for key in wanted[0]} == pytest.approx(wanted[0], rel=1e-5)
