"""`podrun --slurm`: the same results as simulated, in what SLURM has given to the job, and nothing left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..conftest import Sandbox
from .conftest import JobSandbox

pytestmark = pytest.mark.long


def test_a_job_trains_as_a_simulated_pod_does(job: JobSandbox) -> None:
    """A run that resumes in the next job has the same losses bit for bit, and says how much time is left."""
    job.salloc = ("--nodes=2", "--time=10")
    here = Sandbox(job.path).podrun("--slice=cpu-2x1", "--simulate", "--workdir=simulated", "small.yaml")
    assert here.returncode == 0, here.stderr
    shared = f"--workdir={job.path / 'shared'}"
    there = job.podrun("--slurm", "--slice=cpu-2x1", shared, "small.yaml")
    assert there.returncode == 0, there.stderr + there.stdout
    assert "2 hosts x 1 device, reached by srun" in there.stdout
    assert "the SLURM job " in there.stdout and " left\n" in there.stdout
    assert len(job.losses("shared")) == 6
    assert job.losses("shared") == job.losses("simulated")
    again = job.podrun("--slurm", "--slice=cpu-2x1", shared, "small.yaml", "steps=8")
    assert again.returncode == 0, again.stderr
    assert "resumed from the checkpoint of step 6" in again.stdout
    assert sorted(job.losses("shared")) == list(range(1, 9))
    assert not job.left()


def test_gpus_are_those_of_the_job(job: JobSandbox) -> None:
    """Without --slice the job's GPUs are the slice, and every command finds SLURM's own choice of them."""
    job.salloc = ("--nodes=2", "--gpus-per-node=2", "--time=10")
    planned = job.podrun("--slurm", "--dry-run", "small.yaml")
    assert planned.returncode == 0, planned.stderr
    assert "gpu-2x2, 2 hosts x 2 devices (cuda)" in planned.stdout
    seen = job.podrun("exec", "--slurm", "--", "printenv", "CUDA_VISIBLE_DEVICES")
    assert seen.returncode == 0, seen.stderr
    assert seen.stdout == "--- h[0-1] (2 hosts)\n0,1\n"


def test_a_program_sees_the_pod_and_not_srun(job: JobSandbox) -> None:
    """Two programs that know libraries of SLURM's would believe in steps of one process each."""
    (job.path / "show.py").write_text(
        "import os\n"
        "slurm = [name for name in os.environ if name.startswith('SLURM')]\n"
        "print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['WORLD_SIZE'], slurm)\n"
    )
    job.salloc = ("--nodes=2", "--gpus-per-node=1", "--time=10")
    done = job.podrun("--slurm", "--slice=cpu-2x1", "--", "python", "show.py")
    assert done.returncode == 0, done.stderr
    assert "0 2 []" in done.stdout


def test_a_batch_script(job: JobSandbox) -> None:
    """Its exit code is podrun's."""
    script = job.path / "job.sh"
    command = f"exec {sys.executable} -m podrun.launcher.cli --slurm --slice=cpu-2x1"
    script.write_text(f"#!/bin/sh\n{command} -- sh -c 'echo $RANK of $WORLD_SIZE; exit ${{RANK}}7'\n")
    options = ("--nodes=2", "--time=10", "--wait", f"--output={job.path}/out")
    done = job.cluster.hosts.run(["sbatch", *options, str(script)], env=job.env, cwd=str(job.path), timeout=240)
    output = Path(job.path, "out").read_text()
    assert done.returncode in (7, 17), output
    assert "0 of 2" in output
    assert f"[exit code {done.returncode}]" in output.splitlines()[-1]


def test_wrong_slices_are_told(job: JobSandbox) -> None:
    job.salloc = ("--nodes=2", "--gpus-per-node=2", "--time=10")
    done = job.podrun("--slurm", "--slice=cpu-4x1", "--dry-run", "small.yaml")
    assert done.returncode == 2
    assert "--slurm: 2 hosts, but cpu-4x1 has 4 hosts; give 4 hosts, or the slice cpu-2x1" in done.stderr
    done = job.podrun("--slurm", "--slice=gpu-2x4", "--dry-run", "small.yaml")
    assert done.returncode == 2
    assert "--slurm: 2 devices on each host, but gpu-2x4 has 4; give a slice with at most that many" in done.stderr
