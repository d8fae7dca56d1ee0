"""Shared here: a pod of three hosts that are this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.pod.pod import Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.transport.local import LocalTransport


@pytest.fixture
def local(tmp_path: Path) -> tuple[LocalTransport, Pod]:
    pod = replace(simulated_pod(parse_slice("cpu-3x2")), home=str(tmp_path / "home"), python=sys.executable)
    return LocalTransport(pod), pod
