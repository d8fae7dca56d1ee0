"""Ctrl-C while nobody waits for it, as during the preparation of hosts."""

from __future__ import annotations

import os
import signal

import pytest

from podrun.launcher.run.signals import Signals


def test_ctrl_c_is_acknowledged_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Until somebody receives it, who then gets it and says what it means."""
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert capfd.readouterr().err == "podrun: stopping\n"
        numbers: list[int] = []
        with signals.to(numbers.append):
            os.kill(os.getpid(), signal.SIGINT)
        assert numbers == [signal.SIGINT, signal.SIGINT]
        assert capfd.readouterr().err == ""
