"""podrun inside jobs of a real SLURM. Without its programs the tests are skipped; in CI that is a failure."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ..conftest import PODRUN, Sandbox, make_sandbox
from ..hosts import wait_until
from ..pod.conftest import Run
from ..pod.programs import FAULTY
from .cluster import Cluster, why_not

PACED = "data={name: 'faulty:paced', options: {seconds: 0.05}}"
"""Data of a job that waits for what a test does to it; the losses are those of the job's own data."""


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """One cluster for all tests."""
    if reason := why_not():
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that the nodes share: not in /tmp, a folder that is local to each machine."""
    with tempfile.TemporaryDirectory(prefix="podrun-slurm-", dir="/srv") as folder:
        yield Path(folder)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster; after each test its jobs are ended, and its nodes put back."""
    yield shared_cluster
    shared_cluster.restore()


@dataclass
class JobSandbox(Sandbox):
    """A working directory in which each podrun is a SLURM job of its own, on all nodes unless `salloc` says otherwise."""

    cluster: Cluster
    salloc: Sequence[str] = ("--nodes=4", "--time=10")
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        shutil.copy(FAULTY, self.path)

    @property
    def place(self) -> list[str]:
        return self.cluster.hosts.prefix

    @property
    def command(self) -> list[str]:
        return [*self.place, "salloc", "--quiet", *self.salloc, *PODRUN]

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, **self.cluster.env, "PATH": f"{Path(sys.executable).parent}:{self.cluster.env['PATH']}"}

    def run(self, *args: str) -> Run:
        """Starts podrun; the test watches and disturbs it."""
        self.runs.append(Run(self, *args))
        return self.runs[-1]

    def left(self) -> dict[str, list[str]]:
        """Processes of podrun's on the nodes."""
        found = {
            name: [p.args for p in self.cluster.hosts.processes(name) if "podrun" in p.args and "slurmd" not in p.args]
            for name in self.cluster.hosts.names
        }
        return {
            name: [a for a in args if "sshd" not in a]
            for name, args in found.items()
            if any("sshd" not in a for a in args)
        }

    def close(self) -> None:
        for run in self.runs:
            run.process.kill()
            run.process.wait(60)


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[JobSandbox]:
    sandbox = JobSandbox(make_sandbox(tmp_path).path, cluster)
    yield sandbox
    sandbox.close()


@dataclass
class LoginNode(JobSandbox):
    """Submits runs from a working directory on a machine that is no node."""

    @property
    def command(self) -> list[str]:
        return [*self.place, *PODRUN]

    def submit(self, *args: str, options: str = "time=10,signal=30,exclusive") -> str:
        """Submits the small job to two nodes, and returns the id of the run."""
        shared = f"--workdir={self.path / 'shared'}"
        done = self.podrun("--json", f"--slurm={options}", "--slice=cpu-2x1", shared, "small.yaml", *args)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["run"])

    def status(self, run: str) -> dict[str, Any]:
        done = self.podrun("status", "--json", run)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def job_of(self, run: str) -> str:
        return str(self.status(run)["slurm_job"])

    def events(self, run: str) -> list[dict[str, Any]]:
        record = self.path / "home" / "runs" / run / "events.jsonl"
        return [json.loads(line) for line in record.read_text().splitlines() if line.endswith("}")]

    def wait_for_steps(self, run: str, attempt: int = 0) -> None:
        """Waits until an attempt has made a few steps."""

        def trains() -> bool:
            events = self.events(run)
            begun = [n for n, e in enumerate(events) if e["event"] == "start" and e["attempt"] == attempt]
            return bool(begun) and sum(e["event"] == "step" and e["process"] == 0 for e in events[begun[0] :]) >= 4

        try:
            wait_until(trains, f"steps of start {attempt}", 150)
        except TimeoutError as error:
            told = self.podrun("status", run).stdout + self.cluster.ask("scontrol", "show", "nodes")
            raise TimeoutError(f"{error}: {self.output(run)}\n{told}") from None

    def wait_until_gone(self) -> None:
        """Waits for the end of the last process: a run has ended a moment before the podrun in its job has."""
        wait_until(lambda: not self.left(), "the end of all processes")

    def output(self, run: str) -> str:
        path = self.path / "home" / "runs" / run / "job.out"
        return path.read_text() if path.exists() else ""

    def hurry(self, run: str) -> None:
        """Lets a job start that is back in the queue: SLURM has it wait for two minutes.

        Not at once: a slurmd refuses a batch job within the second in which the job was killed, and then the job fails.
        """
        wait_until(lambda: self.status(run)["state"] == "pending", f"{run} to be back in the queue", 60)
        self.cluster.ask("scontrol", "update", f"jobid={self.job_of(run)}", "starttime=now+2")


@pytest.fixture
def login(cluster: Cluster, tmp_path: Path) -> Iterator[LoginNode]:
    node = LoginNode(make_sandbox(tmp_path).path, cluster)
    yield node
    node.close()
