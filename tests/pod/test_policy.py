"""Runs that no restart can help."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from ..conftest import Sandbox
from .conftest import Run

Start = Callable[..., Run]
JOB = ("--simulate", "small.yaml", "eval.every=0", "checkpoint.every=0", "launch.max_restarts=5")


def reasons(run: Run) -> list[str]:
    """Return why podrun did not restart the run."""
    messages = [str(event["message"]) for event in run.of("note")]
    return [m.removeprefix("no restart: ") for m in messages if m.startswith("no restart: ")]


def attempts(run: Run) -> list[Any]:
    return [event["attempt"] for event in run.of("start")]


def fails_in(step: int, process: int) -> str:
    options = f"{{process: {process}, step: {step}, action: raise, again: true}}"
    return f"data={{name: 'faulty:dataset', options: {options}}}"


@pytest.mark.long
def test_a_run_that_fails_in_the_same_step_each_time_ends(start: Start) -> None:
    run = start("--slice=cpu-2x1", *JOB, fails_in(5, process=1))
    assert run.end() == 1
    assert "host-1 (process 1): RuntimeError: the disk of my dreams is broken (faulty.py:44) in step 5" in run.last_line
    assert attempts(run) == [0, 1]
    assert reasons(run) == ["the same failure came twice, with no new checkpoint in between"]


def test_a_run_that_never_reaches_its_first_step_is_not_started_again(start: Start) -> None:
    run = start("--slice=cpu-1x1", *JOB, fails_in(0, process=0))
    assert run.end() == 1
    assert "the disk of my dreams is broken" in run.last_line
    assert attempts(run) == [0]
    assert reasons(run) == ["it failed before its first step, so a restart would most likely fail there again"]


@pytest.mark.long
def test_a_mistake_in_a_program_is_not_tried_again(start: Start, sandbox: Sandbox) -> None:
    """It has made steps, but podrun itself says that the program is wrong."""
    text = "import numpy, podrun\nfor step in podrun.steps(9, {'w': numpy.zeros(2)}, save_every=3):\n    pass\n"
    (sandbox.path / "forgets.py").write_text(text)
    run = start("--simulate", "--slice", "cpu-1x1", "launch.max_restarts=5", "--", sys.executable, "forgets.py")
    assert run.end() == 2
    assert "podrun.steps: the state has not changed up to step 3" in run.last_line
    assert attempts(run) == [0]
    assert reasons(run) == ["the job has a mistake that a restart does not correct"]


def test_a_program_that_ends_at_once_is_started_again_only_once(start: Start, sandbox: Sandbox) -> None:
    (sandbox.path / "typo.py").write_text("import sys; sys.exit(3)")
    run = start("--simulate", "--slice", "cpu-1x1", "launch.max_restarts=5", "--", sys.executable, "typo.py")
    assert run.end() == 3
    (restart,) = run.of("restart")
    assert restart["message"].endswith("restart 1 of 5")
    assert (restart["code"], restart["ending"]) == (3, "failed")
    assert reasons(run) == ["it ended in the same way twice, each time within 30 s of its start"]
