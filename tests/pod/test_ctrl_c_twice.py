"""Ctrl-C twice on a simulated pod, and the lines that the user reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from ..conftest import Sandbox
from ..terminal import OnTerminal
from .conftest import processes_of

pytestmark = pytest.mark.long
Begin = Callable[..., OnTerminal]
POD = ("--slice", "cpu-2x1", "--simulate")


@pytest.fixture
def begin(sandbox: Sandbox) -> Iterator[Begin]:
    started: list[OnTerminal] = []

    def start(*args: str) -> OnTerminal:
        started.append(OnTerminal(sandbox, *args))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_job(begin: Begin, sandbox: Sandbox) -> None:
    """The last line says what is saved, and that nothing is left; nothing is said of output that was left behind."""
    run = begin(*POD, "train.yaml", "steps=10000000", "checkpoint.every=20", "log.every=1")
    run.wait_for("checkpoint of step ", 2)
    run.press_ctrl_c()
    run.wait_for("stopping (Ctrl-C again: at once)")
    run.press_ctrl_c()
    assert run.end() == 130
    assert "did not arrive" not in run.text
    last = run.text.rstrip().splitlines()[-1]
    told = re.fullmatch(
        r"podrun: interrupted( twice, so stopped at once)?; the checkpoint of step (\d+) is complete; the same command "
        r"resumes the run(; no process is left)? \[exit code 130\]",
        last,
    )
    assert told is not None, run.text[-2000:]
    assert bool(told[1]) == bool(told[3])  # the stop may have been faster than the second Ctrl-C
    checkpoints = sorted(int(path.name) for path in (sandbox.path / "runs/train/checkpoints").glob("[0-9]*[0-9]"))
    assert (
        int(told[2]) in checkpoints
    )  # a later one may have been completed at the very end, and not been told any more
    assert processes_of(sandbox) == {}


def test_a_program_that_does_not_stop(begin: Begin, sandbox: Sandbox) -> None:
    """Of a program that reports no checkpoint, none is promised."""
    run = begin(*POD, "launch.stop_grace=500", "--", "sh", "-c", "trap '' TERM; printf 'I am %s\\n' deaf; sleep 600")
    run.wait_for("I am deaf")
    run.press_ctrl_c()
    run.wait_for("stopping (Ctrl-C again: at once)")
    run.press_ctrl_c()
    run.wait_for("stopping at once: no save is waited for")
    assert run.end() == 130
    last = run.text.rstrip().splitlines()[-1]
    assert last == "podrun: interrupted twice, so stopped at once; no process is left [exit code 130]"
    assert processes_of(sandbox) == {}
