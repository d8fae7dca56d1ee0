"""Means of an epoch that are saved in the middle of it, and which values of a file can be such."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.runtime.measure.epochs import EpochMeans, check_saved


def test_means_go_on_where_they_were_saved() -> None:
    """Metrics that only some steps have are divided by the number of those; what is taken is gone."""
    before, after = EpochMeans(10), EpochMeans(10)
    before.add({"loss": 1.0, "accuracy": 4.0})
    before.add({"loss": 2.0, "grad_norm": 9.0})  # which is of its step alone
    saved = before.saved()
    assert saved == {"sums": {"loss": 3.0, "accuracy": 4.0}, "counts": {"loss": 2, "accuracy": 1}, "epoch_size": 10}
    check_saved(saved)
    after.restore(saved)
    after.restore(None)
    after.add({"loss": 6.0})
    assert saved["sums"]["loss"] == 3.0  # a copy
    assert after.take() == {"loss": 3.0, "accuracy": 4.0}
    assert after.take() == {} and after.saved()["sums"] == {}


@pytest.mark.parametrize(
    ("position", "batch_size", "epoch"),
    [
        (8, 8, None),
        (9, 8, None),
        (10, 8, 1),
        (16, 8, 1),
        (18, 8, None),
        (20, 8, 2),
        (10, 10, 1),
        (20, 20, 2),
        (11, 1, None),
    ],
)
def test_the_epoch_that_a_step_ends(position: int, batch_size: int, epoch: int | None) -> None:
    """The step whose batch has an epoch's last example; of two that it ends, the later."""
    assert EpochMeans(10).epoch_of(position, batch_size) == epoch


@pytest.mark.parametrize(
    ("size", "saved", "position", "batch_size", "moved"),
    [
        (12, None, 0, 4, 0),
        (12, None, 5, 4, 8),
        (12, None, 8, 4, 8),
        (12, None, 11, 4, 8),
        (12, None, 12, 4, 12),
        (12, None, 17, 3, 18),
        (12, {"epoch_size": 10}, 25, 4, 32),
        (12, {"epoch_size": 10}, 20, 4, 24),
        (12, {}, 17, 4, 20),
    ],
)
def test_a_position_is_moved_to_the_start_of_a_batch(
    size: int, saved: dict[str, Any] | None, position: int, batch_size: int, moved: int
) -> None:
    """It is in the same epoch, whose size may have been another one; there is always a batch left to end it."""
    assert EpochMeans(size).position_from(saved, position, batch_size) == moved


GOOD: dict[str, Any] = {"sums": {"a": 1.5, "b": 2}, "counts": {"a": 1, "b": 7}, "epoch_size": 1}


def test_values_that_can_be_saved_means() -> None:
    """Sums of floats and integers; older versions had no size, and an epoch that has just begun has no sums."""
    for saved in (GOOD, {k: v for k, v in GOOD.items() if k != "epoch_size"}, {"sums": {}, "counts": {}}):
        check_saved(saved)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sums": []},
        {"counts": []},
        {"sums": {"a": 1.5}},
        {"counts": {"a": 1, "c": 7}},
        {"sums": {"a": 1.5, "b": "2"}},
        {"sums": {"a": None, "b": 2}},
        {"counts": {"a": 0, "b": 7}},
        {"counts": {"a": 1, "b": -1}},
        {"counts": {"a": 1, "b": 7.0}},
        {"counts": {"a": "1", "b": 7}},
        {"epoch_size": 0},
        {"epoch_size": 1.5},
        {"epoch_size": None},
    ],
)
def test_values_that_cannot(wrong: dict[str, Any]) -> None:
    """Each part is checked, and each of its values."""
    with pytest.raises((ValueError, TypeError), match=r"^epoch_means: "):
        check_saved({**GOOD, **wrong})


def test_a_part_that_is_missing() -> None:
    """It is told by its name."""
    for name in ("sums", "counts"):
        with pytest.raises(KeyError, match=name):
            check_saved({k: v for k, v in GOOD.items() if k != name})
