"""Jobs that count epochs, stopped in the middle of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..conftest import Sandbox
from .conftest import Run, kill_everything

Start = Callable[..., Run]
STEPS = 13  # of an epoch: 320 examples fill 13 batches of 24, and 8 are left out
JOB = ("--slice", "cpu-2x1", "--simulate", "small.yaml", "steps=null", "epochs=3", "drop_last=true", "batch_size=24")
EVERY = ("parallel=ensemble", "checkpoint.every=5", "model.dropout=0.1")


@pytest.mark.long
def test_means_of_an_epoch_that_was_interrupted(start: Start, sandbox: Sandbox) -> None:
    """Each epoch reports the means of all its steps, bit for bit the same after a SIGKILL of everything within it."""
    whole = sandbox.podrun(*JOB, *EVERY, "--workdir", "whole")
    assert whole.returncode == 0, whole.stderr
    assert "epoch 3 of 3, means of its steps: loss " in whole.stdout
    permitted = sandbox.path / "steps"
    permitted.write_text(str(3 * STEPS - 2))  # so that it cannot end before it is killed
    held = f"data={{name: 'faulty:held', options: {{file: '{permitted}'}}}}"
    run = start(*JOB, *EVERY, held, "--workdir", "killed")
    run.wait_for(lambda event: event["event"] == "checkpoint" and event["step"] > STEPS)
    kill_everything(sandbox)
    resumed = start(*JOB, *EVERY, held, "--workdir", "killed")
    assert resumed.end() == 0, resumed.stderr
    assert STEPS < resumed.of("resume")[0]["step"] < 3 * STEPS

    epochs, resumed_epochs = (
        {step: {k: v for k, v in record.items() if k not in ("time", "elapsed")} for step, record in records.items()}
        for records in (sandbox.metrics("whole", "epoch"), sandbox.metrics("killed", "epoch"))
    )
    assert resumed_epochs == epochs
    assert {step: record["epoch"] for step, record in epochs.items()} == {STEPS: 1, 2 * STEPS: 2, 3 * STEPS: 3}
    steps = sandbox.metrics("whole")
    for name in ("loss", "ensemble_loss"):  # of the members, and of their averaged prediction
        last = [steps[step][name] for step in range(2 * STEPS + 1, 3 * STEPS + 1)]
        assert epochs[3 * STEPS][name] == pytest.approx(sum(last) / STEPS, rel=1e-9)
    assert all(record["ensemble_loss"] <= record["loss"] * (1 + 1e-6) for record in steps.values())
