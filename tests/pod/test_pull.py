"""`--pull`: metrics and the newest checkpoint are here when a run is over, however it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from ..conftest import Sandbox
from .conftest import Run

Start = Callable[..., Run]
POD = ("--simulate", "--slice", "cpu-1x1")


@pytest.mark.long
def test_a_run_that_fails(sandbox: Sandbox) -> None:
    """The last line is the cause, and a run can go on from what is here."""
    options = ("steps=60", "checkpoint.every=2", "launch.max_restarts=0")
    done = sandbox.podrun(*POD, "--pull=here", "--inject", "exception:host=0@step=40", "small.yaml", *options)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("podrun: failed: host-0 (process 0): ")
    assert f"received: {sandbox.path / 'here'}" in done.stdout
    (checkpoint,) = sandbox.path.glob("here/checkpoints/*")
    again = sandbox.podrun(*POD, "--workdir", "here", "small.yaml", *options)
    assert f"resumed from the checkpoint of step {checkpoint.name}" in again.stdout
    refused = sandbox.podrun(*POD, "--pull=here", "small.yaml")
    assert refused.returncode == 2
    assert "a run has used" in refused.stderr


@pytest.mark.long
def test_a_run_that_is_interrupted(start: Start, sandbox: Sandbox) -> None:
    run = start(*POD, "--pull", "train.yaml", "steps=10000000")
    run.wait_for_step(3)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    (saved,) = run.of("checkpoint")
    folder = sandbox.path / "pulled" / "train"
    assert [path.name for path in folder.glob("checkpoints/*")] == [str(saved["step"])]
    workdir = sandbox.path / "runs" / "train"
    assert (folder / "metrics.jsonl").read_bytes() == (workdir / "metrics.jsonl").read_bytes()
