"""Stop all processes after the same step."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from typing import Any

from jax.experimental import multihost_utils

from .blocked import announce_stop
from .progress import Reporter
from .sigterm import leave_if_untrained, on_sigterm, report_signal


class Preempted(Exception):
    """Raised on all processes after the checkpoint of the last step was saved, to end training."""


class StopRequest:
    """Stop all processes at a common step when one of them gets SIGTERM.

    JAX's preemption service handles SIGTERM and agrees on the step:
    https://docs.jax.dev/en/latest/jax.experimental.multihost_utils.html (reached_preemption_sync_point).
    `reached` counts its calls, so every process must make the same calls. A call takes less than a microsecond.
    """

    def __init__(self) -> None:
        self._calls = 0

    def reached(self) -> bool:
        self._calls += 1
        return multihost_utils.reached_preemption_sync_point(self._calls)


class LocalStop:
    """Stop a single process at the next step after SIGTERM or Ctrl-C (SIGINT). A second signal kills it.

    SIGINT keeps a handler other than Python's own. In an interactive session it interrupts the code, as users expect there.
    """

    def __init__(self) -> None:
        self._asked = False
        self._pid = os.getpid()
        self._before: dict[int, Any] = {}
        """Previous handlers, by signal."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
            return
        self._take(signal.SIGTERM)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler and not hasattr(sys, "ps1"):
            self._take(signal.SIGINT)

    def _take(self, number: int) -> None:
        self._before[number] = signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self._asked = True
        for taken in self._before:
            signal.signal(taken, signal.SIG_DFL)
        if number == signal.SIGINT and os.getpid() == self._pid:  # Ctrl-C reaches forked children, too
            with contextlib.suppress(OSError):  # no terminal any more
                os.write(2, b"\nstopping after this step, with a checkpoint; Ctrl-C again ends at once\n")

    def reached(self) -> bool:
        return self._asked

    def close(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


_ACTION_SIZE = 512  # bytes; struct sigaction has 152 on x86-64


def report_sigterm(reporter: Reporter, leaves: bool = False) -> None:
    """Report SIGTERM to this process as an event, then pass the signal on to JAX's preemption service.

    The service makes all processes save and stop, but does not say which one got the signal. Call this after
    `jax.distributed` is initialized. The service's handler is written in C, so it is kept as the bytes of struct sigaction.

    Args:
        reporter: gets the event.
        leaves: end the process at once with exit code 75 if it has not finished a step.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.create_string_buffer(_ACTION_SIZE)
    if libc.sigaction(signal.SIGTERM, None, before) != 0:
        return

    def pass_on() -> None:
        report_signal(reporter)
        if leaves:
            leave_if_untrained(reporter)
        libc.sigaction(signal.SIGTERM, before, None)
        os.kill(os.getpid(), signal.SIGTERM)
        announce_stop()  # for processes that are blocked and reach no common point

    on_sigterm(pass_on)
