"""`podrun replay` computes steps again as the run has, bit for bit, and names a host that computes otherwise."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..buckets import BUCKET, bucket_server
from ..conftest import Sandbox, make_sandbox
from .bucket_chaos import Bucketed
from .conftest import end_processes, processes_of

KEYS = ("checkpoint={every: 2, keep: 9}", "launch.verify_every=1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """A run of three hosts with 6 steps, a checkpoint of every second one, and a record of all."""
    sandbox = make_sandbox(tmp_path_factory.mktemp("replayed"))
    done = sandbox.podrun("--simulate", "--slice", "cpu-3x1", "-w", "trained", "small.yaml", *KEYS, "batch_size=6")
    assert done.returncode == 0, done.stdout + done.stderr
    return sandbox


def run_of(sandbox: Sandbox) -> str:
    """The id of the run that has trained: the oldest."""
    return min(path.name for path in Path(sandbox.env["PODRUN_HOME"], "runs").iterdir())


def files_of(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def replayed(done: subprocess.CompletedProcess[str], code: int) -> dict[str, Any]:
    assert done.returncode == code, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.long
def test_undisturbed_steps_are_the_same_as_the_record_and_the_checkpoint(trained: Sandbox) -> None:
    before = files_of(trained.path / "trained")
    result = replayed(trained.podrun("replay", run_of(trained), "--step", "3-4", "--times", "2", "--json"), 0)
    assert result["verdict"] == "same"
    assert result["sentence"] == "the same everywhere in 2 repetitions of steps 3 to 4 on 3 devices, bit for bit"
    assert result["compared"] == [
        "the record of step 3 is the same",
        "the record of step 4 is the same",
        "the checkpoint of step 4 is the same",
    ]
    assert files_of(trained.path / "trained") == before
    assert not processes_of(trained)


def test_a_host_with_a_wrong_sum_is_named(trained: Sandbox) -> None:
    before = files_of(trained.path / "trained")
    done = trained.podrun(
        "replay", run_of(trained), "--step", "4", "--times", "2", "--inject", "wrong_sum:host=2", "--json"
    )
    result = replayed(done, 78)
    assert (result["verdict"], result["hosts"], result["step"]) == ("host", ["host-2"], 4)
    assert "it repeats itself, but differs from the majority" in result["sentence"]
    assert "gradients of the same examples" in result["sentence"] and result["arrays"]
    assert files_of(trained.path / "trained") == before
    assert not processes_of(trained)


@pytest.mark.long
def test_a_divided_state_in_a_bucket(tmp_path: Path) -> None:
    """Process 0 downloads both checkpoints, for a state that no host has as a whole."""
    make_sandbox(tmp_path)
    pod = ("--simulate", "--slice", "cpu-2x2")
    with bucket_server("gs", tmp_path / "server.log") as server:
        sandbox = Bucketed(tmp_path, server)
        url = f"gs://{BUCKET}/runs/small"
        parallel = "parallel={name: jit, mesh: {fsdp: 2}}"
        done = sandbox.podrun(*pod, "-w", url, "small.yaml", *KEYS, parallel)
        assert done.returncode == 0, done.stdout + done.stderr
        result = replayed(sandbox.podrun("replay", run_of(sandbox), "--step", "4", "--times", "2", "--json"), 0)
        assert result["compared"] == ["the record of step 4 is the same", "the checkpoint of step 4 is the same"]
        early = sandbox.podrun("replay", run_of(sandbox), "--step", "2")
        assert early.returncode == 2 and f"{url}/checkpoints has no checkpoint before step 2" in early.stderr
        assert not processes_of(sandbox)
        end_processes(sandbox)
