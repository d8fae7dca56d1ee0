"""Do the work of a save in a background thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """A function that runs in a thread. `finished` raises its error."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="save", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = error

    def finished(self) -> bool:
        """Return whether the function has returned. Raises its error."""
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True
