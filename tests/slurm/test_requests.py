"""Requests of a submitted job to a real SLURM: CPUs with all GPUs of a node, and the end of another job."""

from __future__ import annotations

import json
import re

import pytest

from podrun.runtime.contract import ExitCode

from ..hosts import wait_until
from .conftest import LoginNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

PROGRAM = ("--", "python", "-c", "import time; time.sleep(100)")


def test_all_gpus_of_a_node_come_with_its_cpus(login: LoginNode) -> None:
    """Nodes here have two GPUs and two CPUs."""

    def cpus(slice: str, options: str = "") -> int:
        done = login.podrun("--json", f"--slurm=time=10{options}", f"--slice={slice}", *PROGRAM)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)

        def job() -> str:
            return login.cluster.ask("scontrol", "--oneliner", "show", "job", str(answer["slurm_job"]))

        wait_until(lambda: "JobState=RUNNING" in job(), "the start", 60)
        (number,) = re.findall(r" NumCPUs=(\d+) ", job())
        assert login.podrun("stop", "--now", answer["run"]).returncode == 0
        return int(number)

    assert [cpus("gpu-1x2"), cpus("gpu-1x1"), cpus("gpu-1x2", ",cpus-per-task=1"), cpus("cpu-1x1")] == [2, 1, 1, 1]


def test_a_job_after_another(login: LoginNode) -> None:
    first = login.submit(options="time=10,hold")
    words = [f"--slurm=time=10,dependency=afterok:{login.job_of(first)}", "--slice=cpu-1x1", *PROGRAM]
    done = login.podrun("--json", *words)
    assert done.returncode == 0, done.stderr
    second = json.loads(done.stdout)["run"]
    wait_until(lambda: "it waits for another job" in login.podrun("status", second).stdout, "the reason")
    assert login.podrun("stop", first).returncode == 0
    never = "the job that it waits for has failed: `podrun stop` ends it (DependencyNeverSatisfied)"
    wait_until(lambda: never in login.podrun("status", second).stdout, "the reason", 60)
    assert login.podrun("stop", second).returncode == 0
    refused = login.podrun("--slurm=time=10,dependency=after_ok:4711", "--slice=cpu-1x1", *PROGRAM)
    assert refused.returncode == ExitCode.BAD_CONFIG
    assert "dependency=afterok:4711" in refused.stderr and "Traceback" not in refused.stderr, refused.stderr
