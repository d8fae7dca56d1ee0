"""Checkpoints in the memory of hosts that are reached by SSH."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..conftest import make_sandbox
from ..hosts import wait_until
from ..pod.programs import FAULTY
from .pod import PodSandbox

JOB = (
    *("small.yaml", "steps=16", "parallel=jit", "parallel.mesh.fsdp=2", "model.width=256", "model.layers=2"),
    *("launch.max_restarts=1", "checkpoint.every=0"),
)


@pytest.mark.long
def test_a_spare_host_gets_the_part_of_a_lost_one_from_the_copy_on_its_neighbour(
    pod: PodSandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing is on disk, and the losses are those of an undisturbed run. All memory is free afterwards."""
    alone = make_sandbox(tmp_path_factory.mktemp("undisturbed"))
    done = alone.podrun("--simulate", "--slice=cpu-2x1", *JOB)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copy(FAULTY, pod.path)
    option = pod.write_pod(["h0", "h1"], spares=["h2"])
    permitted = pod.path / "shared" / "permitted"
    permitted.write_text("12")
    data = f"data={{name: 'faulty:held', options: {{file: '{permitted}'}}}}"
    run = pod.run(option, *JOB, "checkpoint.memory_every=5", data)
    run.wait_for_step(11)
    memory = Path("/dev/shm", f"podrun-{run.of('start')[0]['run_id']}")
    copy = memory / "h0" / "10.0.1.json"
    wait_until(copy.exists, "the copy of the part of h1", 120)
    pod.hosts.kill("h1")
    shutil.rmtree(memory / "h1")  # the hosts of the tests are on one machine
    permitted.with_suffix(".new").write_text("1000")
    permitted.with_suffix(".new").replace(permitted)
    assert run.end(240) == 0, run.stderr
    (resumed,) = run.of("resume")
    assert (resumed["step"], resumed["memory"]) == (10, "the memory of 1 host (1 part from the copy on h0)")
    assert pod.losses("shared/small") == alone.losses("runs/small")
    assert not memory.exists()
