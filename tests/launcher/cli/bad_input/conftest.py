"""Shared here: podrun's command line in this process."""

from __future__ import annotations

import subprocess

import pytest

from podrun.launcher.cli.root import main

from ....conftest import Sandbox
from .case import Podrun


@pytest.fixture
def podrun(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Podrun:
    """Run podrun in this process: a new one would take a second for each message."""
    monkeypatch.chdir(sandbox.path)
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(args), prog_name="podrun")
        return subprocess.CompletedProcess(args, int(ended.value.code or 0), *capfd.readouterr())

    return call
