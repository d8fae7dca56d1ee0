"""Projects and the hosts that are prepared for them: real agents, hosts that are folders."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from podrun.launcher.agent.base.to_agent import EnvironmentRequest
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.staging.bundle import Bundle
from podrun.launcher.staging.bundles import podrun_bundle, project_bundle
from podrun.launcher.staging.prepare import LacksWheels, Prepared, prepare_hosts
from podrun.launcher.transport.local import LocalTransport
from podrun.launcher.transport.process_channel import ProcessChannel

Answers = dict[str, Prepared | LacksWheels | HostError]


class Behind(LocalTransport):
    """A host on which every command is started by another."""

    def __init__(self, pod: Pod, before: Sequence[str]) -> None:
        super().__init__(pod)
        self._before = before

    def open(self, host: Host, argv: Sequence[str]) -> ProcessChannel:
        return super().open(host, [*self._before, *argv])


class Case:
    """A project, hosts that share a home, and what they said while they were prepared."""

    def __init__(self, path: Path, hosts: int = 1) -> None:
        self.project = path / "project"
        self.project.mkdir()
        (self.project / "train.py").write_text("print('first')")
        self.home = path / "home"
        self.mark = uuid.uuid4().hex
        self.before: Sequence[str] = ()
        self.told: list[tuple[str, str, str]] = []
        self.pod = Pod(
            slice=parse_slice("cpu-1x1"),
            hosts=tuple(Host(f"h{n}", f"h{n}") for n in range(hosts)),
            transport="local",
            platform="cpu",
            home=str(self.home),
            python=sys.executable,
        )

    def bundles(self) -> list[Bundle]:
        return [project_bundle(self.project)[0], podrun_bundle()]

    def run(
        self,
        *,
        env: dict[str, str] | None = None,
        tell: Callable[[str, str, str], None] | None = None,
        facts: dict[str, Any] | None = None,
        environments: Mapping[str, EnvironmentRequest] | None = None,
        **pod: Any,
    ) -> Answers:
        self.pod = replace(self.pod, **pod)
        if environments is None:
            self.told.clear()
        bundles = self.bundles()
        return prepare_hosts(
            self.pod,
            Behind(self.pod, self.before),
            bundles,
            project=bundles[0].name,
            subfolder=".",
            env={"PODRUN_TEST": self.mark, **(env or {})},
            facts=facts,
            tell=tell or (lambda *news: self.told.append(news)),
            environments=environments,
        )

    def prepared(self, **arguments: Any) -> Prepared:
        answer = self.run(**arguments)["h0"]
        assert isinstance(answer, Prepared), answer
        return answer

    def refused(self, **arguments: Any) -> str:
        answer = self.run(**arguments)["h0"]
        assert isinstance(answer, HostError), answer
        return answer.reason

    def said(self, phase: str) -> list[str]:
        return [message for _, p, message in self.told if p == phase]

    def there(self, folder: str = "bundles") -> set[str]:
        """Names in a folder of the home, hidden ones left out."""
        return {path.name for path in (self.home / folder).glob("[!.]*")}

    def processes(self) -> list[int]:
        """Return the processes that this case has started and that still live."""
        mark = f"PODRUN_TEST={self.mark}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found


def wait_until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def contents(folder: Path) -> dict[str, tuple[str, bytes]]:
    """name: (link target or whether its owner may execute it, content)"""
    return {
        str(path.relative_to(folder)): (os.readlink(path), b"")
        if path.is_symlink()
        else (str(path.stat().st_mode & 0o100), path.read_bytes())
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def ask(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
