"""Work in a thread: who waits for it may stop waiting, and gets its result or its error."""

from __future__ import annotations

import threading

import pytest

from podrun.launcher.pod.in_thread import InThread


def test_a_result_and_an_error_arrive() -> None:
    assert InThread(lambda: 7, "seven").result() == 7

    def fail() -> None:
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        InThread(fail, "fail").result()


def test_nobody_has_to_wait_for_the_end() -> None:
    go = threading.Event()
    work = InThread(go.wait, "waits")
    assert not work.wait(0.01)
    go.set()
    assert work.wait(60) and work.result()
