"""Shared here: podrun's home, a pod of three hosts that are this machine, a clock, and a folder of programs found first."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.pod.pod import Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.transport.local import LocalTransport

from .clock import Clock


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of podrun's own files, such as the records of runs. No test uses the user's."""
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def local(tmp_path: Path) -> tuple[LocalTransport, Pod]:
    pod = replace(simulated_pod(parse_slice("cpu-3x2")), home=str(tmp_path / "home"), python=sys.executable)
    return LocalTransport(pod), pod


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the gcloud, or of SLURM's programs, that are found, in a home without keys."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
