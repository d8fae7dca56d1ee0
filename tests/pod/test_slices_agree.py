"""Slices that are connected by a network train as one slice of their size."""

from __future__ import annotations

import pytest

from ..conftest import Sandbox


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
