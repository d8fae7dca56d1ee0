"""Old checkpoints go after a save is complete, and never half."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from podrun.runtime.checkpoint.retention import Retention, best_step, remove_incomplete, remove_superseded, superseded
from podrun.runtime.contract import CHECKPOINT_METRICS, CHECKPOINT_PINNED
from podrun.runtime.ranking import LOWEST_LOSS, Ranking


@pytest.mark.parametrize(
    ("losses", "keep", "keep_best", "pinned", "expected"),
    [
        ({}, 1, 0, (), []),
        ({1: None, 2: None, 3: None}, 2, 0, (), [1]),
        ({3: None, 1: None, 2: None}, 1, 0, (), [1, 2]),
        ({1: 3.0, 2: 1.0, 3: 2.0, 4: 4.0}, 1, 1, (), [1, 3]),
        ({1: 1.0, 2: 1.0, 3: 2.0}, 1, 1, (), [2]),  # of equal ones the first is the best
        ({1: math.nan, 2: math.inf, 3: None, 4: None}, 1, 2, (), [1, 2, 3]),
        ({1: None, 2: None, 3: None}, 1, 0, (1,), [2]),
        ({1: 5.0, 2: None, 3: None}, 1, 1, (2, 9), []),
        ({1: 1.0, 2: 2.0}, 5, 5, (), []),
    ],
)
def test_which_may_go(
    losses: dict[int, float | None], keep: int, keep_best: int, pinned: tuple[int, ...], expected: list[int]
) -> None:
    """All but the newest, the best and the pinned."""
    assert superseded(losses, keep, keep_best, pinned) == expected


def checkpoint(folder: Path, step: int, loss: float | str | None = None) -> Path:
    path = folder / str(step)
    (path / CHECKPOINT_METRICS).parent.mkdir(parents=True)
    (path / CHECKPOINT_METRICS).write_text(json.dumps({"loss": loss}))
    return path


def test_removal(tmp_path: Path) -> None:
    """Losses and pins are read from the checkpoints; a loss that cannot be read is not known."""
    folders = {
        step: checkpoint(tmp_path, step, loss) for step, loss in ((1, 0.5), (2, "x"), (3, 0.7), (4, None), (5, 9))
    }
    (folders[3] / CHECKPOINT_PINNED).touch()
    (folders[4] / CHECKPOINT_METRICS).write_bytes(b"\xff")
    remove_superseded(folders, Retention(1, 1))
    assert {path.name for path in tmp_path.iterdir()} == {"1", "3", "5"}


def test_the_best_by_another_metric(tmp_path: Path) -> None:
    """A checkpoint without the metric, as of an older version, is not the best."""
    folders = {step: checkpoint(tmp_path, step, 1 / step) for step in (1, 2, 3, 4)}
    for step, accuracy in ((1, 0.5), (2, 0.75), (3, 0.75)):
        metrics = {"loss": 1 / step, "accuracy": accuracy}
        (folders[step] / CHECKPOINT_METRICS).write_text(json.dumps(metrics))
    assert best_step(folders, Ranking.parse("max accuracy")) == 2
    assert best_step(folders, Ranking.parse("min accuracy")) == 1
    assert best_step(folders, LOWEST_LOSS) == 4
    assert best_step(folders, Ranking.parse("max recall")) is None
    remove_superseded(folders, Retention(1, 1, Ranking.parse("max accuracy")))
    assert {path.name for path in tmp_path.iterdir()} == {"2", "4"}


@pytest.mark.timeout(60)
def test_a_loss_that_is_none(tmp_path: Path) -> None:
    """A number without end, a nesting without end, and a pipe, which nobody writes to."""
    folders = {step: checkpoint(tmp_path, step) for step in (1, 2, 3, 4)}
    (folders[1] / CHECKPOINT_METRICS).write_text('{"loss": 1%s}' % ("0" * 400))
    (folders[2] / CHECKPOINT_METRICS).write_text("[" * 100_000)
    (folders[3] / CHECKPOINT_METRICS).unlink()
    os.mkfifo(folders[3] / CHECKPOINT_METRICS)
    remove_superseded(folders, Retention(1, 1))
    assert {path.name for path in tmp_path.iterdir()} == {"4"}


def test_a_removal_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest does not have the name of a checkpoint, and goes at the next start."""
    folders = {step: checkpoint(tmp_path, step) for step in (1, 2)}
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda path, ignore_errors: None)
        remove_superseded(folders, Retention(1))
    assert {path.name for path in tmp_path.iterdir() if path.name.isdigit()} == {"2"}
    assert len(list(tmp_path.iterdir())) == 2
    remove_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["2"]
