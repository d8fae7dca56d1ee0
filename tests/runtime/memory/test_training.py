"""A training job with checkpoints in memory, in this process."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from podrun.runtime import save_pace
from podrun.runtime.checkpoint import save
from podrun.runtime.checkpoint.manifest import verify
from podrun.runtime.contract import CHECKPOINT_MANIFEST
from podrun.runtime.save_pace import FIRST

from ...hosts import wait_until
from ..training import train

JOB: dict[str, Any] = {"steps": 16, "batch_size": 8, "checkpoint": {"every": 10, "memory_every": 5}}


def test_a_step_whose_save_failed_is_saved_after_a_restart_from_memory(tmp_path: Path) -> None:
    """Otherwise the disk would fall further behind with each failure in a save. Its evaluation is not lost, either."""
    run, memory = tmp_path / "run", tmp_path / "memory"
    memory.mkdir(mode=0o700)
    job = {**JOB, "eval": {"every": 10}}
    train(run, until=10, memory=memory, **job)
    wait_until((memory / "10.0.0.json").exists, "step 10 in memory", 60)
    saved = run / "checkpoints"
    first = json.loads((saved / "10" / "metrics" / "metrics").read_text())
    shutil.rmtree(saved / "10")
    train(run, attempt=1, memory=memory, **job)
    assert sorted(path.name for path in saved.iterdir()) == ["10", "16"]
    assert json.loads((saved / "10" / "metrics" / "metrics").read_text()) == first
    assert first["loss"] is not None


@pytest.mark.parametrize("damage", ["no manifest", "cut"])
def test_a_step_on_disk_that_is_not_whole_is_saved_again_after_a_restart_from_memory(
    tmp_path: Path, damage: str
) -> None:
    """A process that is killed before the manifest is written leaves one; it must not count as saved."""
    run, memory = tmp_path / "run", tmp_path / "memory"
    memory.mkdir(mode=0o700)
    train(run, until=10, memory=memory, **JOB)
    wait_until((memory / "10.0.0.json").exists, "step 10 in memory", 60)
    folder = run / "checkpoints" / "10"
    if damage == "cut":
        file = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        os.truncate(file, 100)
    else:
        (folder / CHECKPOINT_MANIFEST).unlink()
    train(run, until=10, attempt=1, memory=memory, **JOB)
    assert verify(10, folder, full=True)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["10", "10.damaged-1"]
    events = [json.loads(line) for line in (run / "events").read_text().splitlines()]
    (note,) = [event["message"] for event in events if "checkpoint 10 " in event.get("message", "")]
    assert note.endswith(
        f"; the run continues from that step in memory, and the damaged one is kept as {folder}.damaged-1"
    )


def test_saves_at_their_own_pace_change_no_loss(tmp_path: Path) -> None:
    losses: dict[Any, list[Any]] = {}
    saved: dict[Any, list[int]] = {}
    for every in (0, "auto"):
        run = tmp_path / f"run-{every}"
        train(run, **{**JOB, "steps": 60, "checkpoint": {"every": every, "keep": 99}})
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses[every] = [(record["step"], record["loss"]) for record in records if record["kind"] == "train"]
        saved[every] = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    assert losses["auto"] == losses[0]
    assert saved[0] == [60]
    assert saved["auto"][0] == 1 + FIRST and saved["auto"][-1] == 60
    events = [json.loads(line) for line in (tmp_path / "run-auto" / "events").read_text().splitlines()]
    notes = [event["message"] for event in events if event["event"] == "note"]
    assert any(note.startswith("checkpoint.every: auto: the next save is ") for note in notes)
    following = [(event["step"], event["next"]) for event in events if "next" in event]
    assert all(step < after <= 60 for step, after in following)


def test_the_step_of_the_next_save_is_not_over_when_a_slow_save_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is due at the next step, but waits, and its step with it."""
    metrics, complete = tmp_path / "run" / "metrics.jsonl", save.flush_and_list

    def flush_late(*arguments: Any) -> Any:
        wait_until(lambda: metrics.is_file() and '"step": 40,' in metrics.read_text(), "step 40", 60)
        return complete(*arguments)

    monkeypatch.setattr(save, "flush_and_list", flush_late)
    monkeypatch.setattr(save_pace, "SHARE", 1e9)
    train(tmp_path / "run", **{**JOB, "steps": 60, "checkpoint": {"every": "auto", "keep": 99}})
    events = [json.loads(line) for line in (tmp_path / "run" / "events").read_text().splitlines()]
    saves = [event for event in events if event["event"] == "checkpoint"]
    assert saves[0]["step"] == 1 + FIRST
    assert 40 <= saves[0].get("next", 60) <= 60  # it is left out if training has come to the last save meanwhile
    assert "next" not in saves[-1]
