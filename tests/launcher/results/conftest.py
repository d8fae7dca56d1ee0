"""Shared here: a run on hosts that are this machine, whose workdir looks like one, and podrun in the test's process."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.results.pull_run import Pulled, pull_run
from podrun.launcher.results.selection import parse_selection
from podrun.launcher.rundir.runs import RunDirectory
from podrun.launcher.transport.local import LocalTransport
from podrun.runtime.config import Launch

RUN = "20260131-100000-4f2a"


def make_checkpoint(workdir: Path, step: int, size: int = 300_000, manifest: bool = True) -> Path:
    """Make what looks like a checkpoint: its manifest is right, its large file differs between steps."""
    folder = workdir / "checkpoints" / str(step)
    files = {
        "meta/metadata": json.dumps({"step": step}).encode(),
        "state/d/data": bytes([step % 256]) * size,
        "empty": b"",
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    if manifest:
        digests = {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()}
        (folder / "podrun-manifest.json").write_text(json.dumps({"algorithm": "sha256", "files": digests}))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder, apart from those that podrun keeps for itself."""
    return {
        name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith(".")
    }


@dataclass
class Pulling:
    """A run with a workdir, and a folder that results are brought to."""

    directory: RunDirectory
    workdir: Path
    home: Path
    transport: LocalTransport
    lines: list[str] = field(default_factory=list)

    def pull(self, *words: str) -> Pulled:
        self.lines.clear()
        selection = parse_selection(words)
        return pull_run(self.transport, self.directory, selection, self.home, self.lines.append, lambda *_: None)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalTransport, Pod]]:
    """Make one pod for all tests of a file, in whose home the agent is installed once."""
    home = str(tmp_path_factory.mktemp("hosts"))
    pod = replace(simulated_pod(parse_slice("cpu-2x1")), home=home, python=sys.executable)
    transport = LocalTransport(pod)
    yield transport, pod
    transport.close()


@pytest.fixture
def pulling(tmp_path: Path, hosts: tuple[LocalTransport, Pod], monkeypatch: pytest.MonkeyPatch) -> Pulling:
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "podrun"))
    transport, pod = hosts
    workdir = tmp_path / "work"
    for step in (10, 20):
        make_checkpoint(workdir, step)
    (workdir / "metrics.jsonl").write_text('{"step": 1}\n' * 1000)
    (workdir / "config.yaml").write_text("steps: 20\n")
    (workdir / "sample.txt").write_text("a green bottle\n")
    (workdir / "tensorboard").mkdir()
    (workdir / "tensorboard" / "events.1").write_bytes(bytes(5000))
    (workdir / "of_the_user").write_bytes(b"\xff\x00")
    (workdir / ".podrun-lock").write_text(f"{RUN} (pid 7 on host-0)")
    directory = RunDirectory.create(RunSpec(RUN, pod, Program(("python", "x.py"), Launch()), workdir, tmp_path))
    (directory.logs / "host-0.log").write_bytes(b"a line\n")
    return Pulling(directory, workdir, tmp_path / "home", transport)
