"""The result of training does not depend on how many hosts train it."""

from __future__ import annotations

import pytest

from ..conftest import Sandbox

STEPS = 50
SLICES = ("cpu-2x2", "cpu-1x1")


@pytest.mark.long
def test_losses_agree_over_slices(sandbox: Sandbox) -> None:
    """50 losses and the validation loss agree to 1e-5 relative on 2x2 and 1x1."""
    results = {}
    for slice in SLICES:
        done = sandbox.podrun(
            "--slice", slice, "--simulate", "-w", slice, "train.yaml", f"steps={STEPS}", "eval.batches=all"
        )
        assert done.returncode == 0, done.stderr
        results[slice] = (sandbox.losses(slice), sandbox.metrics(slice, "eval")[STEPS]["loss"])
    losses, validation = results["cpu-1x1"]
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS] < losses[1] - 0.3  # it learns
    for slice in SLICES:
        assert results[slice][0] == pytest.approx(losses, rel=1e-5), slice
        assert results[slice][1] == pytest.approx(validation, rel=1e-5), slice


@pytest.mark.long
def test_two_slices_train_as_one_of_their_size(sandbox: Sandbox) -> None:
    """Divide the state inside of each slice; go on from the checkpoint of the one with the other, bit for bit."""
    job = (
        "--simulate",
        "small.yaml",
        "parallel={name: jit, mesh: {fsdp: 2}}",
        "model.width=256",
        "schedule.name=constant",
    )
    for workdir, slice, steps in (("two", "2xcpu-1x2", 4), ("one", "cpu-2x2", 8), ("two", "cpu-2x2", 8)):
        done = sandbox.podrun("--slice", slice, "-w", workdir, *job, f"steps={steps}")
        assert done.returncode == 0, done.stderr
    assert sandbox.losses("two") == sandbox.losses("one")
    assert sorted(sandbox.losses("two")) == list(range(1, 9))
    refused = sandbox.podrun("--slice", "cpu-1x1", "--num-slices", "2", "-w", "no", *job)
    assert refused.returncode == 2
    assert "does not divide the 1 devices of each of the 2 slices" in refused.stderr
