"""Finish a complete checkpoint beside the training: write its manifest, then remove older ones that are not kept."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Upkeep:
    """A function that runs in a thread of process 0, and whose error is raised where its end is asked for."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = error

    def finished(self) -> bool:
        """Return whether it has ended. Raises whatever made it fail."""
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True
