"""Batches that are left out: the others come in their order, and a resumed job goes on exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.order import JobOrder, WithoutRanges
from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches

from .numbers import SIZES, WEIGHTS, Numbers

BATCH = 8


class Sized:
    def __init__(self, size: int) -> None:
        self.size = size


def config(skip: list[list[int]], **keys: Any) -> Config:
    data = {"name": "python_source", "skip": skip}
    return Config.model_validate({"steps": 100, "batch_size": BATCH, "data": data, "seed": 3, **keys})


def dataset() -> Dataset:
    numbers: Any = Numbers()
    return Dataset(numbers, numbers, b"")


def job(skip: list[list[int]]) -> JobOrder:
    return JobOrder(config(skip), dataset())


def seen(order: JobOrder, steps: int, first: int = 0) -> list[list[int]]:
    batches = TrainBatches(Numbers(), order.order(), BATCH, 0, 1)
    return [batches.at(step * BATCH)["ids"][:, 0].tolist() for step in range(first, steps)]


@pytest.mark.parametrize("skip", [[], [[1, 1]], [[5, 7]], [[9, 9], [3, 4], [160, 190]], [[168, 171]]])
def test_the_others_stay_in_their_order(skip: list[list[int]]) -> None:
    """Also where an epoch ends within what is left out: there are 169.6 batches in one."""
    left_out = {batch for first, last in skip for batch in range(first, last + 1)}
    whole = seen(job([]), 300)
    expected = [batch for number, batch in enumerate(whole, 1) if number not in left_out]
    found = seen(job(skip), len(expected))
    assert found == expected
    plan = job(skip)
    order = plan.order()
    at = np.random.default_rng(0).integers(0, 200 * BATCH, 50)
    flat = np.concatenate(expected)
    assert (order.examples(at)[0] == flat[at]).all()


def test_skipped_on_the_way_from_a_checkpoint() -> None:
    """What was trained stays; the resumed run sees what one sees that never had the batches in its order."""
    before = job([])
    resumed = job([[41, 45]])
    resumed.resume(before.stages, before.skipped, 30 * BATCH, 30)
    assert seen(resumed, 60, 30) == seen(job([[41, 45]]), 60, 30)
    again = job([[41, 45], [80, 80]])  # killed behind the range: it counts, and another is added
    again.resume(resumed.stages, resumed.skipped, 50 * BATCH, 50)
    assert seen(again, 90, 50) == seen(job([[41, 45], [80, 80]]), 90, 50)
    forgotten = job([])  # the key was removed afterwards: the past does not change by that
    forgotten.resume(resumed.stages, resumed.skipped, 50 * BATCH, 50)
    assert seen(forgotten, 60, 50) == seen(resumed, 60, 50)
    at_edge = job([[41, 45]])
    at_edge.resume(resumed.stages, resumed.skipped, 40 * BATCH, 40)
    assert seen(at_edge, 60, 40) == seen(resumed, 60, 40)


def test_ranges_that_begin_at_the_checkpoint() -> None:
    """Nothing of them was seen: they may be made longer, or taken away. Ranges that touch are one."""
    before = job([[41, 45]])
    before.resume((), (), 40 * BATCH, 40)
    longer, none = job([[41, 50]]), job([])
    longer.resume(before.stages, before.skipped, 40 * BATCH, 40)
    none.resume(before.stages, before.skipped, 40 * BATCH, 40)
    assert seen(longer, 60, 40) == seen(job([[41, 50]]), 60, 40)
    assert seen(none, 60, 40) == seen(job([]), 60, 40)
    joined = job([[41, 43], [44, 45]])
    joined.resume(before.stages, before.skipped, 60 * BATCH, 60)
    assert seen(joined, 70, 60) == seen(before, 70, 60)


def test_another_batch_size() -> None:
    """Batches are counted in one size: keys that name them are refused, but what they did before stays."""
    before = job([[41, 45]])
    other = JobOrder(config([[80, 81]], batch_size=4), dataset())
    with pytest.raises(UserError, match=r"data.skip counts batches of 4 examples.* batch_size was changed"):
        other.resume(before.stages, before.skipped, 50 * BATCH, 50)
    without = JobOrder(config([], batch_size=4), dataset())
    without.resume(before.stages, before.skipped, 50 * BATCH, 50)
    first = TrainBatches(Numbers(), without.order(), 4, 0, 1).at(50 * BATCH)["ids"][:, 0].tolist()
    assert first == seen(before, 51, 50)[0][:4]


def test_batches_that_were_trained_already() -> None:
    late = job([[41, 45], [80, 81]])
    with pytest.raises(UserError, match=r"trained on the batches \[41, 45\] already; resume from an earlier one"):
        late.resume((), (), 50 * BATCH, 50)
    part = job([[50, 51]])
    with pytest.raises(UserError, match="already"):
        part.resume((), (), 50 * BATCH, 50)


def test_in_a_mixture() -> None:
    """Weights that change on resume count from the place that was reached in the whole order."""
    mixture = {"name": "mixture", "sources": {name: {"path": name} for name in SIZES}, "weights": WEIGHTS}

    def of(data: dict[str, Any]) -> JobOrder:
        numbers: Any = Numbers()
        sources: Any = {name: Sized(size) for name, size in SIZES.items()}
        settings = Config.model_validate({"steps": 100, "batch_size": BATCH, "data": data})
        return JobOrder(settings, Dataset(numbers, numbers, b"", sources=sources))

    plan = of({**mixture, "skip": [[3, 4]]})
    changed = of({**mixture, "skip": [[3, 4]], "weights": {**WEIGHTS, "a": 0.1}})
    changed.resume(plan.stages, plan.skipped, 10 * BATCH, 10)
    assert [stage.start for stage in changed.stages] == [0, 12 * BATCH]
    assert seen(changed, 10) == seen(plan, 10) and seen(changed, 20) != seen(plan, 20)
    assert sum(size * plan.source_epochs(10 * BATCH)[name] for name, size in SIZES.items()) == pytest.approx(12 * BATCH)
    assert job([]).source_epochs(5) == {}


def test_positions_without_ranges() -> None:
    order = WithoutRanges(ShuffledOrder(100, 0), [])
    assert (order.run(7, 20)[0] == ShuffledOrder(100, 0).run(7, 20)[0]).all()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"data": {"name": "python_source", "skip": [[5, 3]]}}, r"ends before it begins; .* such as \[3, 5\]"),
        ({"data": {"name": "python_source", "skip": [[1, 5], [5, 6]]}}, "overlaps the range that ends with 5"),
        ({"data": {"name": "python_source", "skip": [[0, 5]]}}, "greater than 0"),
        ({"data": {"name": "python_source", "skip": [3]}}, "tuple"),
        (
            {"data": {"name": "python_source", "skip": [[1, 2]]}, "steps": None, "epochs": 1},
            "which epochs has no use for",
        ),
    ],
)
def test_mistakes(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config.model_validate({"steps": 1, "batch_size": 8, **keys})
