"""Shared here: podrun's command line in this process."""

from __future__ import annotations

import pytest

from podrun.launcher.commands import prestart

from ....conftest import Sandbox, here
from .case import Podrun


@pytest.fixture
def podrun(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Podrun:
    """Run podrun in this process: a new one would take a second for each message.

    Workers are not prestarted, because they would import JAX for nothing. That they do not disturb a message is proved by the
    tests that run the command.
    """
    monkeypatch.setattr(prestart, "_start", lambda slice, count: None)
    monkeypatch.chdir(sandbox.path)
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    return here(capfd)
