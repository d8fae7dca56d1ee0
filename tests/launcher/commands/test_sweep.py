"""`podrun sweep` with runs that are made by hand, or cannot start: what the machine does is no trial's fault."""

from __future__ import annotations

import json
import os
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from ...conftest import Sandbox
from .conftest import Podrun

SWEEP = ("sweep", "--slice", "cpu-1x1", "--simulate", "sweep.yaml")
FILE = """
program: [python, trial.py, "{x}"]
space: {x: {values: [1, 2]}}
search: grid
metric: max score
"""
FULL = os.strerror(ENOSPC)


@pytest.fixture(autouse=True)
def folder(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a sweep.yaml."""
    monkeypatch.chdir(sandbox.path)
    (sandbox.path / "trial.py").write_text("")
    (sandbox.path / "sweep.yaml").write_text(FILE)
    return sandbox.path


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "runs" / "sweep" / "sweep.jsonl").read_text().splitlines()]


def test_a_machine_on_which_no_run_can_start_stops_the_sweep_and_costs_no_trial(
    podrun: Podrun, folder: Path, home: Path
) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "runs").write_text("in the way of the runs' records")
    done = podrun(*SWEEP)
    assert done.code == 1 and "Traceback" not in done.err
    assert "trial 0 cannot start: cannot make the run directory" in done.err
    assert "go on with: podrun sweep" in done.err
    assert [event["event"] for event in journal(folder)] == ["sweep", "trial"]
