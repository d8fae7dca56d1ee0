"""Hosts without a shared folder: process 0 keeps checkpoints and metrics on its own disk, and restores for all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ..hosts import Hosts
from ..pod.programs import FAULTY
from .pod import PodSandbox
from .results import digests

NAMES = ["h0", "h1", "h2"]
JOB = ["small.yaml", "steps=8", "checkpoint.every=4", "parallel={name: jit, mesh: {fsdp: 2}}"]


def kept_in(hosts: Hosts, name: str) -> Path:
    """Return the workdir of a host, which has a home of its own, as it is seen from outside."""
    return hosts.home_of(name) / "runs" / "small"


def pod_file(pod: PodSandbox, names: list[str], **keys: object) -> str:
    for name in NAMES:
        shutil.rmtree(kept_in(pod.hosts, name).parent, ignore_errors=True)
    return pod.write_pod(names, workdir=f"{pod.hosts.home_inside()}/runs", **keys)


def losses(pod: PodSandbox, folder: Path) -> dict[int, float]:
    shutil.rmtree(pod.path / "copy", ignore_errors=True)
    shutil.copytree(folder, pod.path / "copy")
    return pod.losses("copy")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_resumes_bit_for_bit(pod: PodSandbox) -> None:
    """With another host as the first, to which the disk was copied. All that is on it comes home."""
    first = "h2"
    option = pod_file(pod, ["h0", "h1"])
    undisturbed = pod.podrun(option, *JOB)
    assert undisturbed.returncode == 0, undisturbed.stderr
    workdir = f"{pod.hosts.home_inside()}/runs/small"
    assert f"are kept on h0:{workdir}, which the other hosts do not see" in undisturbed.stdout
    expected = losses(pod, kept_in(pod.hosts, "h0"))
    assert sorted(expected) == list(range(1, 9))
    disk = pod.path / "disk"
    shutil.copytree(kept_in(pod.hosts, "h0"), disk)
    shutil.rmtree(disk / "checkpoints" / "8")
    records = (disk / "metrics.jsonl").read_text().splitlines(keepends=True)
    (disk / "metrics.jsonl").write_text("".join(line for line in records if json.loads(line).get("step", 0) <= 4))
    option = pod_file(pod, [first, "h1"])
    shutil.copytree(disk, kept_in(pod.hosts, first))
    resumed = pod.podrun(option, *JOB)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed from the checkpoint of step 4" in resumed.stdout
    assert losses(pod, kept_in(pod.hosts, first)) == expected
    assert not any(kept_in(pod.hosts, name).exists() for name in NAMES if name != first)
    pulled = pod.podrun("pull", "--to", "brought")
    assert pulled.returncode == 0, pulled.stderr
    here = {name: sha for name, sha in digests(pod.path / "brought").items() if not name.startswith("logs/")}
    assert here == digests(kept_in(pod.hosts, first))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_first_host_is_lost(pod: PodSandbox) -> None:
    """A spare begins anew, and it is told where the checkpoints are."""
    shutil.copy(FAULTY, pod.path)
    option = pod_file(pod, ["h0", "h1"], spares=["h2"])
    data = "data={name: 'faulty:paced', options: {seconds: 0.1}}"
    run = pod.run(option, "small.yaml", "steps=60", "checkpoint.every=5", "launch.max_restarts=1", data)
    run.wait_for(lambda event: event["event"] == "checkpoint", 240)
    pod.hosts.kill("h0")
    assert run.end(240) == 0, run.stderr
    step = run.of("restart")[0]["saved"]
    folder = f"{pod.hosts.home_inside()}/runs/small/checkpoints"
    assert [note["message"] for note in run.of("note") if note["message"].startswith("this run has saved step ")] == [
        f"this run has saved step {step} in h0:{folder}, but h0 is not the first host any more, and h2, which is, has none: "
        f"training begins with step 1. To go on from step {step}, stop this run, and list h0 first in the pod, or copy its "
        "workdir to h2"
    ]


@pytest.mark.long
def test_a_loop_of_the_users_own(pod: PodSandbox) -> None:
    """Its state is divided over the processes: process 0 gathers it, and gives each its part."""
    option = pod_file(pod, ["h0", "h1"])
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


BEST = """
import os, signal
import jax
import jax.numpy as jnp
import podrun

VALUES = [5.0, 3.0, 4.0, 3.5, 4.5, 1.0]
podrun.init()
zero = jax.jit(lambda: {"x": jnp.zeros(())})()
train = podrun.steps(6, zero, save_every=1, keep=1, best="min val/top loss", patience=3)
for step in train:
    train.state = {"x": train.state["x"] + 1}
    if step == 4 and jax.process_index() == 1 and os.environ["PODRUN_ATTEMPT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    podrun.report(step, {"val/top loss": VALUES[step - 1]})
step, state = podrun.checkpoint.restore(zero, best="min val/top loss")
print("best", jax.process_index(), step, float(state["x"]), flush=True)
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_best_checkpoint_is_kept_and_ends_training(pod: PodSandbox) -> None:
    """All hosts end at the same step, also if one was killed meanwhile, and all get the best checkpoint."""
    option = pod_file(pod, ["h0", "h1"])
    (pod.path / "small.py").write_text(BEST)
    done = pod.podrun(option, "launch.max_restarts=1", "--", "python", "small.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the loop ends early, at step 5 of 6" in done.stdout and "restart 1 of 1" in done.stdout + done.stderr
    logs = pod.podrun("logs").stdout
    assert "best 0 2 2.0" in logs and "best 1 2 2.0" in logs
    assert sorted(path.name for path in (kept_in(pod.hosts, "h0") / "checkpoints").iterdir()) == ["2", "5"]
    assert not kept_in(pod.hosts, "h1").exists()
