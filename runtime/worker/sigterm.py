"""Handle SIGTERM at once, even while the main thread is busy. Does not import JAX."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from ..contract import ExitCode, Phase
from ..events import EventKind
from .progress import Reporter

_BEFORE_TRAINING = {None, Phase.CONNECT, Phase.SETUP, Phase.RESTORE, Phase.COMPILE}


def on_sigterm(action: Callable[[], None]) -> None:
    """Call `action` in a thread at the next SIGTERM; replaces an earlier action. Must be called by the main thread.

    The interpreter's C handler writes to the wakeup descriptor immediately, so the action does not wait for the main thread,
    which may be in a long computation.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def wait() -> None:
        while signal.SIGTERM not in os.read(read_end, 64):
            pass
        action()

    def reset() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=reset)  # a child's SIGTERM must not be reported as this process's
    threading.Thread(target=wait, name="sigterm", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)


def leave_on_sigterm(reporter: Reporter) -> None:
    """End this process with exit code 75 at once on SIGTERM, because it has nothing to save yet.

    Imports, and the wait for the other processes, may take longer than the grace period.
    """

    def leave() -> None:
        report_signal(reporter)
        leave_if_untrained(reporter)

    on_sigterm(leave)


def leave_unsaved_on_sigterm(reporter: Reporter) -> None:
    """End this process with exit code 75 at once on SIGTERM, in every phase, because it has nothing to save."""

    def leave() -> None:
        report_signal(reporter)
        os._exit(ExitCode.PREEMPTED)

    on_sigterm(leave)


def report_signal(reporter: Reporter) -> None:
    """Report that SIGTERM was sent to this process itself."""
    reporter.stopping = True
    try:
        reporter.event({"event": EventKind.SIGNAL, "number": int(signal.SIGTERM)})
    except OSError:  # a full disk must not prevent the stop
        pass


def leave_if_untrained(reporter: Reporter) -> None:
    """End this process if it has not finished a step yet. A compilation may take longer than the grace period."""
    if reporter.last_phase in _BEFORE_TRAINING:
        try:
            print("stopped before its first step: there is nothing to save", flush=True)
            sys.stderr.flush()
        except (OSError, ValueError):  # a full disk or a closed output
            pass
        os._exit(ExitCode.PREEMPTED)
