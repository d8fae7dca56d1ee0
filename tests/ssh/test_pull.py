"""Results come home from hosts that have folders of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from podrun.launcher.view.times import size

from ..hosts import Hosts, wait_until
from .pod import PodSandbox
from .results import digests, newest

BIG = "checkpoints/20/state/data"


@pytest.mark.long
def test_an_interrupted_pull_goes_on(pod: PodSandbox, hosts: Hosts) -> None:
    """All that is on the disk of process 0 comes; after a SIGKILL in the middle only what has not come yet."""
    option = pod.write_pod(["h0", "h1"], workdir=None)
    program = pod.add("results.py")
    ran = pod.podrun(option, "--", "python", program)
    assert ran.returncode == 0, ran.stderr
    workdir = hosts.home_of("h0") / ".podrun" / "workdirs" / "results"
    total = (workdir / BIG).stat().st_size
    home = pod.path / "pulled" / "results"
    part = home / ".podrun-pull" / "parts" / BIG

    pull = subprocess.Popen([*pod.command, "pull", "20"], cwd=pod.path, env=pod.env)
    wait_until(lambda: part.exists() and part.stat().st_size > 20 << 20, "the first part")
    pull.kill()
    pull.wait(30)
    assert not (home / "checkpoints").exists()
    here = part.stat().st_size
    assert here < total

    done = pod.podrun("pull")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("podrun: pulling h0:/")
    small = (1 << 20) + len('{"step": 10}\n{"step": 20}\n')
    assert f"pulled 2 checkpoints and 1 file, {size(total - here + small)} received" in done.stdout
    assert digests(home) == digests(workdir)
    assert "pulled nothing new; 3 unchanged" in pod.podrun("pull").stdout

    shutil.rmtree(home)
    hosts.kill("h0")
    lost = pod.podrun("pull")
    assert lost.returncode == 69
    assert lost.stderr.startswith("podrun: h0: ")
    assert not home.exists()


@pytest.mark.long
def test_a_trained_run_goes_on_here(pod: PodSandbox, hosts: Hosts) -> None:
    """Its paths name the host of process 0, the command that is named brings them, and a simulated pod resumes from them."""
    option = pod.write_pod(["h1"], workdir=None)
    ran = pod.podrun(option, "--pull", "small.yaml", "checkpoint.every=3")
    assert ran.returncode == 0, ran.stderr
    assert "metrics      h1:~/.podrun/workdirs/small/metrics.jsonl" in ran.stdout
    assert "`podrun pull " in ran.stdout
    listed = pod.podrun("checkpoints", option, "small")
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == ["3", "6"]
    listed = pod.podrun("checkpoints", "--run", newest(pod).name, "small")
    assert listed.stdout.count("verified") == 2
    assert pod.podrun("pull").returncode == 0
    workdir = hosts.home_of("h1") / ".podrun" / "workdirs" / "small"
    assert {name: sha for name, sha in digests(pod.path / "pulled/small").items() if "logs/" not in name} == digests(
        workdir
    )
    command = [sys.executable, "-m", "podrun.launcher.cli", "--simulate", "--slice=cpu-1x1", "--workdir=pulled/small"]
    resumed = subprocess.run(
        [*command, "small.yaml", "steps=8"], cwd=pod.path, env=pod.env, capture_output=True, text=True, timeout=240
    )
    assert "resumed from the checkpoint of step 6" in resumed.stdout, resumed.stderr
