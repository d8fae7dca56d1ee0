"""Stop all processes at the same step."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

from jax.experimental import multihost_utils

from .blocked import tell_stop
from .progress import Reporter
from .sigterm import leave_if_untrained, on_sigterm, report_signal


class Preempted(Exception):
    """All processes stop at this step. Raised after the checkpoint was saved."""


class StopRequest:
    """Turn SIGTERM to any process into a stop of all of them at one common point.

    JAX's preemption service takes SIGTERM over and agrees on the point:
    https://docs.jax.dev/en/latest/jax.experimental.multihost_utils.html (reached_preemption_sync_point).
    It counts calls, so every process must make the same ones; a call takes less than a microsecond.
    """

    def __init__(self) -> None:
        self._calls = 0

    def reached(self) -> bool:
        self._calls += 1
        return multihost_utils.reached_preemption_sync_point(self._calls)


class LocalStop:
    """Turn SIGTERM to a process that is alone into a stop. A second SIGTERM ends it at once."""

    def __init__(self) -> None:
        self._asked = False
        self._listens = threading.current_thread() is threading.main_thread()  # no other may set a handler
        self._before = signal.signal(signal.SIGTERM, self._ask) if self._listens else None

    def _ask(self, number: int, frame: object) -> None:
        self._asked = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def reached(self) -> bool:
        return self._asked

    def close(self) -> None:
        """Give SIGTERM back to whom it belonged before."""
        if self._listens:
            signal.signal(signal.SIGTERM, self._before)


_ACTION_SIZE = 512  # bytes; struct sigaction has 152 on x86-64


def report_sigterm(reporter: Reporter, leaves: bool = False) -> None:
    """Report SIGTERM to this process as an event, then pass it on to JAX's preemption service.

    The service tells all processes, which then save and stop; none of them could say which one was sent the signal. Call it
    once `jax.distributed` is initialized. Its handler is not Python's, so it is kept as the bytes that sigaction gives.

    `leaves`: end the process at once with exit code 75 if it has not finished a step.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.create_string_buffer(_ACTION_SIZE)
    if libc.sigaction(signal.SIGTERM, None, before) != 0:
        return

    def hand_on() -> None:
        report_signal(reporter)
        if leaves:
            leave_if_untrained(reporter)
        libc.sigaction(signal.SIGTERM, before, None)
        os.kill(os.getpid(), signal.SIGTERM)
        tell_stop()  # for processes that come to no common point any more

    on_sigterm(hand_on)
