"""Ctrl-C at awkward moments: while nobody waits for it, while a program starts, and more than once."""

from __future__ import annotations

import os
import signal

import pytest

from podrun.launcher.run.signals import Signals, deferred_interrupt, unless_interrupted
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


def test_ctrl_c_while_a_program_starts_is_raised_once_it_has_started() -> None:
    """Raised earlier, it would leave a program that nobody waits for."""
    started = False

    def start() -> None:
        nonlocal started
        with deferred_interrupt():
            press_ctrl_c(times=2)
            started = True

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_a_question_and_nothing_else() -> None:
    """Also if it is pressed again while the question ends."""
    cleaned_up = False

    def question() -> str:
        nonlocal cleaned_up
        try:
            press_ctrl_c(times=1)
        finally:
            press_ctrl_c(times=2)
            cleaned_up = True
        return "answered"

    assert unless_interrupted(question) is None and cleaned_up
    assert unless_interrupted(lambda: "answered") == "answered"


def press_ctrl_c(times: int) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
