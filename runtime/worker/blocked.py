"""Save a checkpoint before a stop although this process's data source is blocked, so that no further step can complete.

The other processes have dispatched the next step and wait in it; their previous state is gone, because steps donate it. This
process still has the state after the last completed step. When it has decided to save, no process can complete another step.
So all processes that decide this have the same state, and one of them saves it.
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
    """Return the client of JAX's key-value store for the pod; None if this process has not joined a pod."""
    from jax._src import distributed

    return distributed.global_state.client


def announce_stop() -> None:
    """Tell all processes, by the key-value store, that the pod was asked to stop."""
    with contextlib.suppress(Exception):  # process 0 is gone, which ends all processes
        pod_store().key_value_set(_STOP, "1", allow_overwrite=True)


class BlockedData:
    """Save and end this process if it is waiting for data when the pod is asked to stop.

    Args:
        reporter: knows whether this process was sent SIGTERM.
        grace: seconds to wait for data after the request to stop.
        store: client of the pod's key-value store; None for a single process.
    """

    def __init__(self, reporter: Reporter, grace: float, store: Any) -> None:
        self._reporter = reporter
        self._grace = grace
        self._store = store
        self._since: float | None = None

    def check(self, completed: Callable[[], bool], save: Callable[[], None]) -> None:
        """Save and end the process if it is time to. Call it from time to time while waiting for data.

        Args:
            completed: returns whether this process has a state to save and all its steps are complete.
            save: saves the state, and returns when the checkpoint is complete.
        """
        if self._since is None:
            self._since = time.monotonic() if self._is_stopping() else None
        if self._since is None or time.monotonic() - self._since < self._grace or not completed():
            return
        if self._claims():
            print("the data source is blocked: this process saves the last complete step alone", flush=True)
            save()
            self._set(_DONE)
        else:
            while (
                self._get(_DONE) is None
            ):  # if that never happens, the agent kills this process after its grace period
                time.sleep(_POLL)
        sys.stdout.flush()
        os._exit(ExitCode.PREEMPTED)  # a normal exit would wait for the others

    def _is_stopping(self) -> bool:
        return self._reporter.stopping or self._get(_STOP) is not None

    def _claims(self) -> bool:
        """Return whether this process is the first to claim the save."""
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
        except Exception:  # the key is not set
            return None
