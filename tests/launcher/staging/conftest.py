"""Shared here: a project and one host, on which nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .prepared import Case


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    for pid in case.processes():
        os.kill(pid, signal.SIGKILL)
