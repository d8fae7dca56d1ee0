"""Run work in a thread, so that whoever waits for it can stop waiting: at Ctrl-C, or after a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class InThread(Generic[T]):
    """Work that runs in a thread of its own. A process that ends does not wait for it."""

    def __init__(self, work: Callable[[], T], name: str) -> None:
        """Start to call `work`. `name` is that of the thread."""
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
        """Wait for the end, up to `seconds`. Return whether the work has ended. A signal's handler may raise here."""
        return self._finished.wait(seconds)

    def result(self) -> T:
        """Wait for the end, and return what the work returned. Raises what it raised."""
        self._finished.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]
