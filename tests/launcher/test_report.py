"""What a run says last."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan import make_plan
from podrun.launcher.record.runs import RunDirectory
from podrun.launcher.show.console import PlainConsole
from podrun.launcher.show.report import report
from podrun.launcher.show.view import View
from podrun.launcher.slices import parse_slice
from podrun.launcher.state import Outcome
from podrun.runtime.config import Config


@pytest.mark.parametrize("tensorboard", [True, False])
def test_where_everything_is(tensorboard: bool) -> None:
    """What was not written is not named."""
    job = Config.model_validate({"steps": 3, "batch_size": 64, "log": {"tensorboard": tensorboard}})
    pod = simulated_pod(parse_slice("cpu-1x2"))
    plan = make_plan(pod, job, run_id="r", attempt=0, workdir=Path("/w"), cwd=Path("/"))
    out = io.StringIO()
    report(Outcome(0), plan, RunDirectory(Path("/runs/r")), cast(View, PlainConsole(out)))
    said = out.getvalue().splitlines()
    board = ["tensorboard  tensorboard --logdir /w/tensorboard"] if tensorboard else []
    assert said == [
        "metrics      /w/metrics.jsonl",
        "checkpoints  /w/checkpoints",
        *board,
        "logs         /runs/r/logs",
        "podrun: done",
    ]
