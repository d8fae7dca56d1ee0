"""Data that is brought to hosts: real agents, hosts that are folders with a home each and meet over loopback."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from podrun.launcher.plan.data_set import DataSet
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.staging.distribute_data import Received, distribute_data
from podrun.launcher.staging.find_data import find_data
from podrun.launcher.transport.local import LocalTransport
from podrun.launcher.transport.process_channel import ProcessChannel
from podrun.runtime.config import Config

Answers = dict[str, Received | HostError]


def text_job(path: Path | str, **data: object) -> Config:
    return Config.model_validate(
        {"data": {"name": "text", "path": str(path), "bring": True, **data}, "steps": 1, "batch_size": 1}
    )


class Homes(LocalTransport):
    """Hosts with a home each, in which every command may be started by another."""

    def __init__(self, pod: Pod, folder: Path) -> None:
        super().__init__(pod)
        self._folder = folder
        self.before: dict[str, Sequence[str]] = {}
        self.channels: dict[str, ProcessChannel] = {}

    def open(self, host: Host, argv: Sequence[str]) -> ProcessChannel:
        home = self._folder / host.address
        home.mkdir(exist_ok=True)
        argv = [a.replace("~/", f"{home}/", 1) if a.startswith("~/") else a for a in argv]
        command = ["env", f"HOME={home}", *self.before.get(host.name, ()), *argv]
        self.channels[host.name] = channel = super().open(host, command)
        return channel


class Carried:
    """A folder of data, and hosts that it is brought to."""

    def __init__(self, path: Path, hosts: int) -> None:
        self.data = path / "data"
        self.data.mkdir()
        self.folder = path
        self.pod = Pod(
            slice=parse_slice("cpu-1x1"),
            hosts=tuple(Host(f"h{n}", f"h{n}", internal="127.0.0.1") for n in range(hosts)),
            transport="local",
            platform="cpu",
            python=sys.executable,
        )
        self.transport = Homes(self.pod, path)
        self.notes: list[str] = []
        self.told: list[tuple[str, str]] = []

    def write(self, name: str, content: bytes) -> Path:
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def found(self) -> DataSet:
        return find_data(text_job(self.data))

    def bring(self, data: DataSet | None = None) -> Answers:
        self.notes.clear()
        self.told.clear()
        return distribute_data(
            self.pod,
            self.transport,
            data or self.found(),
            lambda host, text: self.told.append((host, text)),
            self.notes.append,
        )

    def brought(self, data: DataSet | None = None) -> dict[str, Received]:
        answers = self.bring(data)
        assert all(isinstance(answer, Received) for answer in answers.values()), answers
        return {host: answer for host, answer in answers.items() if isinstance(answer, Received)}

    def store(self, host: str) -> Path:
        """Return the folder of files of a host."""
        return self.folder / host / ".podrun" / "data"

    def on(self, host: str, data: DataSet | None = None) -> dict[str, bytes]:
        """Return the data on a host, by name."""
        root = self.store(host) / "sets" / (data or self.found()).name / "path"
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}

    def here(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.data)): p.read_bytes() for p in self.data.rglob("*") if p.is_file()}

    def with_hosts(self, *hosts: Host) -> None:
        self.pod = replace(self.pod, hosts=hosts)
