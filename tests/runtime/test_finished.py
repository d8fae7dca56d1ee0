"""A job that is complete is not evaluated again, unless something about it has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from podrun.runtime.train import Trainer

from .training import train

JOB: dict[str, Any] = {"steps": 4, "batch_size": 8}


def evaluations(workdir: Path) -> int:
    events = [json.loads(line) for line in (workdir / "events").read_text().splitlines()]
    return sum(event["event"] == "eval" for event in events)


def test_a_complete_job_is_not_evaluated_again(tmp_path: Path) -> None:
    train(tmp_path, **JOB)
    assert evaluations(tmp_path) == 1
    train(tmp_path, **JOB)
    assert evaluations(tmp_path) == 1
    train(tmp_path, **JOB, seed=1)
    assert evaluations(tmp_path) == 2


def test_a_job_that_was_stopped_before_its_last_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its steps are done; the evaluation is still to be made."""
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_evaluate", lambda self: None)
        train(tmp_path, **JOB)
    assert evaluations(tmp_path) == 0
    train(tmp_path, **JOB)
    assert evaluations(tmp_path) == 1
