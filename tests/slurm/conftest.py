"""podrun inside jobs of a real SLURM. Without its programs the tests are skipped; in CI that is a failure."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ..conftest import Sandbox, make_sandbox
from ..pod.conftest import Run
from .cluster import Cluster, why_not


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
    """A folder that the nodes share: not in /tmp, which each machine has for itself."""
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

    @property
    def command(self) -> list[str]:
        return [*self.cluster.hosts.prefix, "salloc", "--quiet", *self.salloc, *super().command]

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
