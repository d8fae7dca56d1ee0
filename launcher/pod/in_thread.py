"""Run a function in a thread, so that the caller can stop waiting for it on Ctrl-C or after a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class InThread(Generic[T]):
    """A function call in its own daemon thread; the process can exit without waiting for it."""

    def __init__(self, work: Callable[[], T], name: str) -> None:
        """Start the thread. `name` is the thread's name."""
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._finished = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self._finished.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the call has ended, at most `seconds`; return whether it has. Signal handlers may raise from here."""
        return self._finished.wait(seconds)

    def result(self) -> T:
        """Wait for the end and return the call's result, or raise its exception."""
        self._finished.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]
