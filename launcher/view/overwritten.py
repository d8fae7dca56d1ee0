"""Show progress on the last line of a terminal, with permanent lines above. Without a terminal only these are printed."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from .terminal import overwrite_line
from .times import size

_EVERY = 0.2  # minimum seconds between two updates


class OverwrittenLine:
    """Progress on the last line of stderr, and lines on stdout. The end of a `with` block clears the progress."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = False
        self._next = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        self.clear()
        print(text, flush=True)

    def progress(self, what: str, here: int, total: int) -> None:
        """Show that `here` of `total` bytes of `what` are present."""
        self.show(f"{what}  {size(here)} of {size(total)}")

    def show(self, text: str) -> None:
        """Show `text` in place of the progress line."""
        if self._live and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            self._shown = True
            overwrite_line(sys.stderr, text)

    def clear(self) -> None:
        """Clear the progress line."""
        if self._shown:
            overwrite_line(sys.stderr, "")
            self._shown = False

    def __enter__(self) -> OverwrittenLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
