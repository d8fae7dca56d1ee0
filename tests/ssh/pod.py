"""podrun on a pod of hosts that are reached by SSH."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ..conftest import FAST, Sandbox
from ..hosts import Hosts, LiteHosts
from ..pod.conftest import Run

PROGRAMS = Path(__file__).with_name("programs")
CACHE = {"JAX_COMPILATION_CACHE_DIR": str(Path("~/.cache/podrun/xla").expanduser())}
"""Environment of workers: homes of hosts are empty, and what another test has compiled is often the same program."""


@dataclass
class PodSandbox(Sandbox):
    """A working directory in which podrun runs in the launcher's namespace of `hosts`. All see the same workdir."""

    hosts: Hosts | LiteHosts
    runs: list[Run] = field(default_factory=list)

    @property
    def place(self) -> list[str]:
        return self.hosts.prefix

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, **{k: v for k, v in self.hosts.env.items() if k == "HOME"}, "MY_SECRET": SECRET}

    def write_pod(
        self, names: Iterable[str], slice: str | None = None, env: Mapping[str, str] | None = None, **keys: object
    ) -> str:
        """Writes pod.yaml; returns the option that names it."""
        names = list(names)
        (self.path / "shared").mkdir(exist_ok=True)
        settings = {
            "slice": slice or f"cpu-{len(names)}x1",
            "hosts": names,
            "ssh": {"user": "root", "key": str(self.hosts.key), "known_hosts": str(self.hosts.known_hosts)},
            "python": sys.executable,
            "workdir": str(self.path / "shared"),
            "env": {**FAST, **CACHE, **(env or {})},
            **keys,
        }
        (self.path / "pod.yaml").write_text(yaml.safe_dump({k: v for k, v in settings.items() if v is not None}))
        return "--pod=pod.yaml"

    def run(self, *args: str) -> Run:
        """Starts podrun; the test watches and disturbs it."""
        self.runs.append(Run(self, *args))
        return self.runs[-1]

    @property
    def enough(self) -> Path:
        """The file that ends count.py."""
        return self.path / "shared" / "enough"

    def add(self, program: str) -> str:
        """Puts one of the programs here into the project."""
        shutil.copy(PROGRAMS / program, self.path)
        return program

    def close(self) -> None:
        for run in self.runs:
            run.process.kill()
            run.process.wait(60)


SECRET = "correct-horse-battery-staple"


def fake_package(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
