"""Jobs that count epochs and are resumed with other batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from podrun.runtime.contract import Workdir
from tests.tiers import mostly_long

from .training import Epochs, train


@pytest.mark.parametrize(
    ("before", "until", "now", "last", "epochs"),
    mostly_long([
        ({"batch_size": 8}, 5, {"batch_size": 8}, 15, [(5, 1), (10, 2), (15, 3)]),
        ({"batch_size": 8}, 5, {"batch_size": 20}, 9, [(5, 1), (7, 2), (9, 3)]),
        ({"batch_size": 8}, 7, {"batch_size": 40}, 9, [(5, 1), (8, 2), (9, 3)]),  # within an epoch
        ({"batch_size": 8}, 10, {"batch_size": "all"}, 11, [(5, 1), (10, 2), (11, 3)]),
        ({"batch_size": "all"}, 2, {"batch_size": 8}, 7, [(1, 1), (2, 2), (7, 3)]),
        # Devices that the examples are not equally shared by: 40 and 3 parts of 14.
        ({"batch_size": "all", "accumulate": 3}, 2, {"batch_size": "all"}, 3, [(1, 1), (2, 2), (3, 3)]),
        ({"batch_size": "all"}, 2, {"batch_size": "all", "parallel": "pmap", "accumulate": 3}, 3, [(1, 1), (2, 2), (3, 3)]),
        # Epochs of 32 examples, and then of 36, of which whole ones have been trained on.
        ({"batch_size": 16, "drop_last": True}, 4, {"batch_size": 12, "drop_last": True}, 7, [(2, 1), (4, 2), (7, 3)]),
        ({"batch_size": 12, "drop_last": True}, 4, {"batch_size": 16, "drop_last": True}, 7, [(3, 1), (5, 2), (7, 3)]),
    ], lambda number, _: number < 2, lambda number, _: number in (2, 4, 6, 7)),
)  # fmt: skip
def test_epochs_are_counted_in_examples(
    tmp_path: Path, before: dict[str, Any], until: int, now: dict[str, Any], last: int, epochs: Epochs
) -> None:
    """The rest of three epochs is trained, in as many steps as it fills, and each reports under its number."""
    train(tmp_path, until, epochs=3, **before)
    assert train(tmp_path, epochs=3, **now) == (last, epochs)


def test_the_schedule_ends_with_the_last_step(tmp_path: Path) -> None:
    """It is that of all steps that there are now."""
    schedule = {"name": "linear", "final": 0.0}
    train(tmp_path, 5, epochs=3, batch_size=8, schedule=schedule)
    assert train(tmp_path, epochs=3, batch_size=20, schedule=schedule)[0] == 9
    records = map(json.loads, Workdir(tmp_path).metrics.read_text().splitlines())
    rates = {r["step"]: r["learning_rate"] for r in records if r["kind"] == "train"}
    assert rates[5] > rates[8] > rates[9] == 0.0


def test_more_epochs_are_done_than_asked_for(tmp_path: Path) -> None:
    """Nothing is left to train, and the checkpoint is not trained beyond."""
    train(tmp_path, epochs=3, batch_size=8)
    assert train(tmp_path, epochs=2, batch_size=20)[0] == 15
