"""Ctrl-C while nobody waits for it, as during the preparation of hosts."""

from __future__ import annotations

import os
import signal

import pytest

from podrun.launcher.run.signals import Signals
from podrun.launcher.view.terminal import write_in_handler


def test_ctrl_c_is_acknowledged_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Until somebody receives it, who then gets it and says what it means."""
    with Signals(on_early_interrupt=lambda: write_in_handler("stopping\n")) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert capfd.readouterr().err == "stopping\n"
        numbers: list[int] = []
        with signals.to(numbers.append):
            os.kill(os.getpid(), signal.SIGINT)
        assert numbers == [signal.SIGINT, signal.SIGINT]
        assert capfd.readouterr().err == ""
