"""Show progress on the last line of a terminal, and lines above it. Without a terminal only the lines are shown."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from .terminal import overwrite_line
from .times import size

_EVERY = 0.2  # seconds


class OverwrittenLine:
    """The last line of stderr; lines are printed to stdout. Cleared at the end of a `with` block."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = False
        self._next = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        self.clear()
        print(text, flush=True)

    def progress(self, what: str, here: int, total: int) -> None:
        """Show how many bytes of something are here."""
        if self._live and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            self._shown = True
            overwrite_line(sys.stderr, f"{what}  {size(here)} of {size(total)}")

    def clear(self) -> None:
        """Remove the progress."""
        if self._shown:
            overwrite_line(sys.stderr, "")
            self._shown = False

    def __enter__(self) -> OverwrittenLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
