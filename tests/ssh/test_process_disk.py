"""Hosts without a shared folder: process 0 keeps checkpoints and metrics on its own disk, and restores for all."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from ..hosts import Hosts
from .pod import PodSandbox
from .test_faults import wait_until_gone

NAMES = ["h0", "h1", "h2", "h3"]
JOB = ["small.yaml", "steps=8", "log.every=1", "checkpoint.every=3", "eval.every=0"]
FSDP = ["parallel.name=jit", "parallel.mesh.fsdp=4"]


def kept_in(hosts: Hosts, name: str) -> Path:
    """Return the workdir of a host, which has a home of its own, as it is seen from outside."""
    return hosts.home_of(name) / "runs" / "small"


def pod_file(pod: PodSandbox, names: list[str]) -> str:
    for name in NAMES:
        shutil.rmtree(kept_in(pod.hosts, name), ignore_errors=True)
    # The hosts' homes are empty; what a simulated pod has compiled is the same program.
    env = {"JAX_COMPILATION_CACHE_DIR": str(Path("~/.cache/podrun/xla").expanduser())}
    return pod.write_pod(names, workdir=f"{pod.hosts.home_inside()}/runs", env=env)


def losses(pod: PodSandbox, folder: Path) -> dict[int, float]:
    shutil.rmtree(pod.path / "copy", ignore_errors=True)
    shutil.copytree(folder, pod.path / "copy")
    return pod.losses("copy")


def interrupt(pod: PodSandbox, option: str, *job: str) -> None:
    """Start the job, and end all of it without a warning once a checkpoint is complete."""
    run = pod.run(option, *job)
    run.wait_for(lambda event: event["event"] == "checkpoint")
    run.process.kill()
    for name in NAMES:
        for process in pod.hosts.processes(name):
            if "podrun" in process.args and "sshd" not in process.args:
                process.kill(signal.SIGKILL)
    wait_until_gone(pod.hosts, NAMES, 90)


@pytest.mark.long
@pytest.mark.parametrize("strategy", [[], FSDP], ids=["whole", "fsdp"])
def test_a_run_is_killed_and_resumes_bit_for_bit(pod: PodSandbox, strategy: list[str]) -> None:
    """In the end host 0 is another machine, to which the disk was copied."""
    option = pod_file(pod, NAMES)
    undisturbed = pod.podrun(option, *JOB, *strategy)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert (
        f"are kept on h0:{pod.hosts.home_inside()}/runs/small, which the other hosts do not see" in undisturbed.stdout
    )
    expected = losses(pod, kept_in(pod.hosts, "h0"))
    assert sorted(expected) == list(range(1, 9))
    option = pod_file(pod, NAMES)
    interrupt(pod, option, *JOB, *strategy)
    shutil.copytree(kept_in(pod.hosts, "h0"), pod.path / "disk")
    resumed = pod.podrun(option, *JOB, *strategy)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed from the checkpoint of step" in resumed.stdout
    assert losses(pod, kept_in(pod.hosts, "h0")) == expected
    assert not any((kept_in(pod.hosts, name)).exists() for name in NAMES[1:])
    replaced = ["h3", "h1", "h2", "h0"]
    option = pod_file(pod, replaced)
    shutil.copytree(pod.path / "disk", kept_in(pod.hosts, "h3"))
    resumed = pod.podrun(option, *JOB, *strategy)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed from the checkpoint of step" in resumed.stdout
    assert losses(pod, kept_in(pod.hosts, "h3")) == expected


@pytest.mark.long
def test_a_loop_of_the_users_own(pod: PodSandbox) -> None:
    """Its state is divided over the processes: process 0 gathers it, and gives each its part."""
    option = pod_file(pod, NAMES)
    program = pod.add("own_disk.py")
    folder = pod.hosts.home_of("h0") / "runs" / "own_disk"
    shutil.rmtree(folder, ignore_errors=True)
    for steps in ("6", "9"):
        done = pod.podrun(option, "--", "python3", program, steps)
        assert done.returncode == 0, done.stderr
    assert "resumed from the checkpoint of step 6" in done.stdout
    resumed = losses(pod, folder)
    shutil.rmtree(folder)
    done = pod.podrun(option, "--", "python3", program, "9")
    assert done.returncode == 0, done.stderr
    assert losses(pod, folder) == resumed and len(resumed) == 9
    assert not (pod.hosts.home_of("h1") / "runs").exists()
