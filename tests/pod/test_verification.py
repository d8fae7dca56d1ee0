"""A host of a pod that holds or computes something else than the others is named (`launch.verify_every`)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from ..conftest import Sandbox
from ..tutorial import commands, run

POD = ("--simulate", "--slice", "cpu-2x1", "small.yaml", "steps=12", "checkpoint.every=4", "launch.verify_every=3")
PAGE = Path(__file__).parents[2] / "docs" / "replay.md"


def test_a_flipped_bit_costs_the_steps_since_a_checkpoint_that_agreed(sandbox: Sandbox) -> None:
    """Two hosts differ, so both are named; the restart ends with the losses of an undisturbed run, bit for bit."""
    assert sandbox.podrun(*POD, "-w", "undisturbed").returncode == 0
    flipped = ("--inject", "bitflip:host=1@step=5", "launch.max_restarts=1")
    done = sandbox.podrun(*POD, *flipped, "-w", "flipped", "checkpoint.keep=9")
    assert done.returncode == 0, done.stdout + done.stderr
    named = "the values of the state differ after step 6, in params"
    assert named in done.stdout and "between host-0 (process 0), host-1 (process 1)" in done.stdout
    assert "resumed from the checkpoint of step 4" in done.stdout
    assert sandbox.losses("flipped") == sandbox.losses("undisturbed")
    assert "share_in_verification" in sandbox.metrics("undisturbed")[12]


@pytest.mark.long
def test_200_undisturbed_comparisons_of_four_hosts_raise_no_alarm(sandbox: Sandbox) -> None:
    done = sandbox.podrun("--simulate", "--slice", "cpu-4x1", "small.yaml", "steps=200", "launch.verify_every=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all devices agreed bit for bit in 200 comparisons" in done.stdout


@pytest.mark.long
def test_the_page_about_hosts_that_compute_wrongly(sandbox: Sandbox) -> None:
    """On four hosts the one that a bit was flipped on, and the one with slightly wrong sums, are named within 20 steps."""
    (sandbox.path / "train.yaml").write_text((sandbox.path / "small.yaml").read_text().replace("steps: 6", "steps: 40"))
    done = []
    for command in commands(PAGE.read_text()):
        if "replay" not in command.line:
            shutil.rmtree(
                sandbox.path / "runs", ignore_errors=True
            )  # a run of its own, which does not resume the one before
        done.append(run(sandbox, command))
    undisturbed, recorded, same, some, named, flipped, wrong = done
    assert re.search(r"all devices agreed bit for bit in \d+ comparisons", undisturbed)
    assert "checkpoint of step 10 complete" in recorded
    assert "the same everywhere in 3 repetitions of step 20 on 4 devices, bit for bit" in same
    assert "the record of step 20 is the same" in same and "the checkpoint of step 20 is the same" in same
    verdict = json.loads(some.splitlines()[-1])
    assert verdict["verdict"] == "same" and "2 devices (cpu) of 2 processes, which may round" in verdict["compared"][0]
    assert re.search(
        r"replay of \S+: host-2 computes wrongly: the gradients of the same examples differ after step 20, in", named
    )
    assert re.search(
        r"failed: host-1 \(process 1\): its values of the state differ after step 20, in params\.\S+, while", flipped
    )
    assert re.search(
        r"failed: host-2 \(process 2\): its gradients of the same examples differ after step 20, in .* while", wrong
    )
