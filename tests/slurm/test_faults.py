"""Name what SLURM does to a job, and what breaks in it: the right cause, and no process left."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from podrun.runtime.contract import ExitCode

from ..hosts import wait_until
from ..pod.conftest import Run
from ..ssh.pod import PROGRAMS
from .cluster import Cluster
from .conftest import PACED, JobSandbox

pytestmark = pytest.mark.long

ENDLESS = ("steps=100000", "log.every=1", PACED)
COUNT = PROGRAMS / "count.py"


def training(job: JobSandbox, *options: str) -> Run:
    """Two nodes that train until something stops them."""
    job.salloc = ("--nodes=2", "--time=10")
    run = job.run("--slurm", "--slice=cpu-2x1", f"--workdir={job.path / 'shared'}", "small.yaml", *ENDLESS, *options)
    run.wait_for_step(3)
    return run


def counting(job: JobSandbox) -> Run:
    """A user program on four nodes, until the file `enough` is there."""
    run = job.run("--slurm", "--slice=cpu-4x1", "--", "python", str(COUNT), str(job.path / "enough"))
    for _ in range(4):
        run.wait_for(lambda e: e["event"] == "host" and e["phase"] == "started")
    return run


def kill_on(job: JobSandbox, node: str, word: str) -> None:
    """Kill the processes of a node with a word in their command."""
    victims = [p for p in job.cluster.hosts.processes(node) if word in p.args]
    assert victims
    for process in victims:
        process.kill()


def wait_until_none_is_left(job: JobSandbox, seconds: float = 60.0) -> None:
    wait_until(lambda: not job.left(), "an end of all processes of the run", seconds)


def test_a_cancelled_job_saves_first(job: JobSandbox) -> None:
    """It is not restarted: a preempted run would be elsewhere, but this one has no nodes any more."""
    run = training(job, "launch.max_preemptions=3", "launch.max_restarts=3")
    (number,) = job.cluster.jobs()
    job.cluster.ask("scancel", number)
    assert run.end() == ExitCode.PREEMPTED, run.stderr
    assert f"the SLURM job {number} was cancelled" in run.last_line
    assert "saved first" in run.last_line
    assert any("no restart: the hosts are no longer available" in e["message"] for e in run.of("note"))
    assert not job.left()
    losses = job.losses("shared")
    resumed = job.podrun(
        "--slurm", "--slice=cpu-2x1", f"--workdir={job.path / 'shared'}", "small.yaml", f"steps={max(losses) + 2}"
    )
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed from the checkpoint of step {max(losses)}" in resumed.stdout


def test_a_cancelled_batch_script(job: JobSandbox) -> None:
    """podrun itself gets SIGTERM as well, and still says where it came from."""
    script = job.path / "job.sh"
    command = (
        f"exec {sys.executable} -m podrun.launcher.cli --slurm --slice=cpu-2x1 --workdir={job.path}/shared small.yaml"
    )
    script.write_text(f"#!/bin/sh\n{command} {shlex.join(ENDLESS)}\n")
    options = ("--parsable", "--nodes=2", "--time=10", f"--output={job.path}/out")
    submitted = job.cluster.hosts.run(["sbatch", *options, str(script)], env=job.env, cwd=str(job.path))
    number = submitted.stdout.strip()
    output = job.path / "out"
    wait_until(lambda: output.exists() and "step 3/" in output.read_text(), "the third step", 120)
    job.cluster.ask("scancel", number)
    wait_until(lambda: "[exit code " in output.read_text(), "the end of podrun", 60)
    assert f"the SLURM job {number} was cancelled" in output.read_text().splitlines()[-1]
    wait_until_none_is_left(job)


def test_the_time_limit_is_named(job: JobSandbox) -> None:
    """SLURM looks twice a minute whose time is up; nothing is computed meanwhile."""
    run = counting(job)
    (number,) = job.cluster.jobs()
    job.cluster.ask("scontrol", "update", f"jobid={number}", "endtime=now")
    assert run.end() != 0
    assert f"the SLURM job {number} has reached its time limit" in run.last_line
    assert not job.left()


def test_a_killed_worker_is_named_with_its_node(job: JobSandbox) -> None:
    run = training(job)
    kill_on(job, list(run.of("start")[0]["hosts"])[1], "podrun.runtime")
    assert run.end() == 128 + signal.SIGKILL
    assert " (process 1): was ended by SIGKILL" in run.last_line
    assert not job.left()


def test_a_launcher_that_is_killed_leaves_nothing(job: JobSandbox) -> None:
    run = counting(job)
    launcher = next(p for p in Path("/proc").glob("[0-9]*") if _is_launcher(p, job))
    os.kill(int(launcher.name), signal.SIGKILL)
    run.process.wait(60)
    wait_until_none_is_left(job)


def test_a_job_that_is_over_is_told_at_the_start(cluster: Cluster, job: JobSandbox) -> None:
    job.salloc = ("--nodes=2", "--time=10", "env", "SLURM_JOB_ID=4000000")
    done = job.podrun("exec", "--slurm", "--", "true")
    assert done.returncode == ExitCode.UNAVAILABLE
    assert "the SLURM job 4000000 has ended" in done.stderr + done.stdout


def test_a_node_of_another_job_is_named(job: JobSandbox) -> None:
    job.salloc = ("--nodelist=h0", "--time=10", "env", "SLURM_JOB_NODELIST=h[0-1]")
    done = job.podrun("exec", "--slurm", "--", "hostname")
    assert done.returncode == ExitCode.UNAVAILABLE
    assert "h1: " in done.stderr + done.stdout
    assert "is not one of this job" in done.stderr + done.stdout


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _is_launcher(folder: Path, job: JobSandbox) -> bool:
    command = _read(folder / "cmdline")
    return b"podrun.launcher.cli\0--json" in command and b"salloc" not in command and _is_of(folder, job)


def _is_of(folder: Path, job: JobSandbox) -> bool:
    """Return whether a process was started from the test's podrun, whose home is its own."""
    return f"PODRUN_HOME={job.path / 'home'}".encode() in _read(folder / "environ").split(b"\0")
