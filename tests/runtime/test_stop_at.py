"""`stop_at` ends a run before the job's last step. A later run goes on as if there had been no end between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .training import train

JOB: dict[str, Any] = {
    "steps": 12,
    "batch_size": 8,
    "schedule": {"name": "cosine", "warmup_steps": 2},
    "eval": {"every": 4},
    "checkpoint": {"every": 5},
}
EPOCHS = {key: value for key, value in JOB.items() if key != "steps"} | {"epochs": 2}
TIMES = ("time", "elapsed", "seconds", "per_second", "share_", "mfu", "flops")


def records(workdir: Path) -> list[dict[str, Any]]:
    """Return all metrics of a workdir, without times."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if not any(word in key for word in TIMES)} for line in lines]


def events(workdir: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (workdir / "events").read_text().splitlines())
    return [line for line in lines if line["event"] == kind]


@pytest.mark.parametrize("job", [JOB, EPOCHS], ids=["steps", "epochs"])
def test_a_run_that_ends_early_goes_on_exactly(tmp_path: Path, job: dict[str, Any]) -> None:
    """All metrics are those of a run that was never ended, bit for bit: the schedule is that of all steps."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, **job)
    assert train(parts, **job, stop_at=3)[0] == 3
    assert events(parts, "checkpoint")[-1]["step"] == 3 and not events(parts, "eval")
    assert train(parts, **job, stop_at=8)[0] == 8
    assert [event["step"] for event in events(parts, "eval")] == [4, 8]
    train(parts, **job)
    assert records(parts) == records(whole)
    notes = [event["message"] for event in events(parts, "note")]
    last = records(whole)[-1]["step"]
    assert f"the run ends at step 3 of {last} (stop_at: 3); a later stop_at, or null, goes on exactly" in notes
    assert not any("differ" in note for note in notes)
    assert events(parts, "step")[0]["steps"] == 3


def test_nothing_is_left_until_a_later_step(tmp_path: Path) -> None:
    train(tmp_path, **JOB, stop_at=4)
    before = records(tmp_path)
    train(tmp_path, **JOB, stop_at=4)
    train(tmp_path, **JOB, stop_at=2)
    assert [event["steps"] for event in events(tmp_path, "step")][-1] == 4  # not "step 4 of 2"
    assert records(tmp_path) == before and len(events(tmp_path, "checkpoint")) == 1
    notes = [event["message"] for event in events(tmp_path, "note")]
    assert sum("the run ends at step 4 of 12" in note for note in notes) == 3


def test_the_last_step_ends_a_job_as_always(tmp_path: Path) -> None:
    train(tmp_path, **JOB, stop_at=12)
    assert not any("the run ends" in event["message"] for event in events(tmp_path, "note"))
