"""Save before a stop although the data source of this process is blocked, so that no common step is reached any more.

The others have dispatched the next step and wait in it for this process; the state that they had before is gone, as a step
takes its place. This process still has the state after the last step that all have completed. Once it has decided to leave,
nobody can complete another one, so all that decide the same have the same state, and one of them saves it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from ..contract import ExitCode
from .progress import Reporter

_STOP, _SAVER, _DONE = "podrun/stop", "podrun/saver", "podrun/saved"
_POLL = 0.2  # seconds


def pod_store() -> Any:
    """Return the client of the pod's key-value store; None if this process has joined no pod."""
    from jax._src import distributed

    return distributed.global_state.client


def tell_stop() -> None:
    """Tell all processes that the pod is asked to stop."""
    with contextlib.suppress(Exception):  # process 0 is gone, which ends all
        pod_store().key_value_set(_STOP, "1", allow_overwrite=True)


class BlockedData:
    """Save and end this process if it has no data when the pod is asked to stop.

    Args:
        reporter: who knows of a SIGTERM to this process.
        patience: seconds for which data may still come.
        store: client of the pod's key-value store; None: this process is alone.
    """

    def __init__(self, reporter: Reporter, patience: float, store: Any) -> None:
        self._reporter = reporter
        self._patience = patience
        self._store = store
        self._since: float | None = None

    def look(self, completed: Callable[[], bool], save: Callable[[], None]) -> None:
        """Call it from time to time while there is no data. Ends this process once the state is saved.

        Args:
            completed: tells whether this process has a state to save, and all its steps are complete.
            save: saves it, and returns when that is complete.
        """
        if self._since is None:
            self._since = time.monotonic() if self._is_stopping() else None
        if self._since is None or time.monotonic() - self._since < self._patience or not completed():
            return
        if self._claims():
            print("the data source is blocked: this process saves the last complete step alone", flush=True)
            save()
            self._set(_DONE)
        else:
            while self._get(_DONE) is None:  # the agent ends this process when its grace is over
                time.sleep(_POLL)
        sys.stdout.flush()
        os._exit(ExitCode.PREEMPTED)  # the others cannot be waited for

    def _is_stopping(self) -> bool:
        return self._reporter.stopping or self._get(_STOP) is not None

    def _claims(self) -> bool:
        """Return True if this process is the first one to save."""
        try:
            return self._set(_SAVER)
        except Exception:
            return False

    def _set(self, name: str) -> bool:
        if self._store is not None:
            self._store.key_value_set(name, "1")
        return True

    def _get(self, name: str) -> str | None:
        try:
            return None if self._store is None else str(self._store.key_value_try_get(name))
        except Exception:  # it is not there
            return None
