"""Compare variants as jobs of SLURM, from a machine that is no node."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from typing import IO

import pytest

from podrun.runtime.contract import ExitCode

from ..hosts import wait_until
from .conftest import LoginNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

OPTIONS = "--slurm=time=10,signal=30,exclusive"


def start(login: LoginNode, *words: str) -> subprocess.Popen[str]:
    """Compare on one node, which has room for one variant at a time."""
    command = [*login.command, "compare", f"{OPTIONS},nodelist=h0", *words]
    return subprocess.Popen(
        command, cwd=login.path, env=login.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_variants_are_jobs_of_their_own(login: LoginNode) -> None:
    """At the same time if there are nodes for them."""
    over = "--over=optimizer.learning_rate=0.1,0.01"
    place = f"--workdir={login.path / 'shared'}"
    best = "--best=min f2"
    done = login.podrun("compare", "--json", OPTIONS, "--slice=cpu-1x1", place, best, "small.yaml", "steps=30", over)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" has reported no finite f2, which --best names") == 2
    table = json.loads(done.stdout)
    assert [row["state"] for row in table["variants"]] == ["done", "done"]
    runs = {row["run"]: row["state"] for row in json.loads(login.podrun("ps", "--all", "--json").stdout)}
    assert sorted(runs) == sorted(row["run"] for row in table["variants"]) and set(runs.values()) == {"done"}
    for row in table["variants"]:
        assert f"{row['variant']}: {row['run']} runs on h" in done.stderr
    login.wait_until_gone()


LIMITED = """\
#!/bin/sh
if [ -n "$(squeue --noheader)" ]; then
    echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2
    echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)" >&2
    exit 1
fi
exec {sbatch} "$@"
"""


class LimitedLogin(LoginNode):
    """Submit where SLURM takes one job of this user's at a time."""

    @property
    def env(self) -> dict[str, str]:
        path = super().env["PATH"]
        sbatch = self.path / "bin" / "sbatch"
        sbatch.parent.mkdir(exist_ok=True)
        sbatch.write_text(LIMITED.format(sbatch=shutil.which("sbatch", path=path)))
        sbatch.chmod(0o755)
        return {**super().env, "PATH": f"{sbatch.parent}:{path}"}


def test_a_limit_of_jobs_is_kept(login: LoginNode) -> None:
    """Submit the next variant when one has ended."""
    login = LimitedLogin(login.path, login.cluster)
    over = "--over=optimizer.learning_rate=0.1,0.01"
    place = f"--workdir={login.path / 'shared'}"
    done = login.podrun("compare", "--json", OPTIONS, "--slice=cpu-1x1", place, "small.yaml", "steps=20", over)
    assert done.returncode == 0, done.stderr
    assert [row["state"] for row in json.loads(done.stdout)["variants"]] == ["done"] * 2
    assert done.stderr.count("podrun tries again when another variant has ended") == 1, done.stderr


def test_ctrl_c_ends_all_of_them(login: LoginNode) -> None:
    """One that runs saves first, and those in the queue are taken out of it; the table tells both."""
    over = "--over=optimizer.learning_rate=0.1,0.01,0.001"
    place = f"--workdir={login.path / 'shared'}"
    comparing = start(login, "--slice=cpu-1x1", place, "small.yaml", "steps=100000", over)
    try:
        output = comparing.stdout
        assert output
        read_until(output, " runs on h0")
        (running,) = (
            row["run"] for row in json.loads(login.podrun("ps", "--json").stdout) if row["state"] != "pending"
        )
        login.wait_for_steps(running)
        comparing.send_signal(signal.SIGINT)
        text = output.read()
        assert comparing.wait(120) == 128 + signal.SIGTERM, text
        assert "stopping all; those that run save first" in text
        assert text.count("taken out of it") == 2 and "interrupted; the checkpoint of step" in text, text
        wait_until(lambda: not login.cluster.jobs(), "the end of the jobs")
        login.wait_until_gone()
    finally:
        comparing.kill()


def read_until(output: IO[str], words: str) -> None:
    for line in output:
        if words in line:
            return
    raise AssertionError(f"no line with {words!r}")


def test_what_slurm_does_not_take(login: LoginNode) -> None:
    """Leave neither runs nor folders."""
    place = f"--workdir={login.path / 'shared'}"
    words = ("--slice=cpu-4x1", place, "small.yaml", "--over=optimizer.learning_rate=0.1,0.01")
    refused = login.podrun("compare", "--slurm=partition=nope", *words)
    assert refused.returncode == ExitCode.BAD_CONFIG
    assert "nvalid partition" in refused.stderr, refused.stderr
    assert not (login.path / "shared").exists()
    assert json.loads(login.podrun("ps", "--all", "--json").stdout) == []
    both = login.podrun("compare", "--slurm=array=1-4", *words, "stepps=4")
    assert both.returncode == ExitCode.BAD_CONFIG
    assert "--slurm: array" in both.stderr and "stepps" in both.stderr, both.stderr
