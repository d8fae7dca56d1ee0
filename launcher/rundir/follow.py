"""Follow the recorded events of a run, from a shell that does not supervise it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from ..agent.base.schema import Lines
from .echo import Echo, echoed_log
from .events import LIMIT, Event, parse_event
from .runs import RunDirectory
from .submitted import is_final, is_unfinished

_PIECE = 1 << 16  # bytes of output shown at once


class Output:
    """Output of a user program's first process. podrun's runtime reports events instead."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._echo: Echo | None = None

    def next_lines(self, at_end: bool = False) -> str:
        """Return the next lines to show, empty if there are none. With `at_end`, the last one may be unfinished."""
        if self._echo is None:
            start = self._directory.start()
            log = None if start is None else echoed_log(start)
            self._echo = None if log is None else Echo(self._directory.logs / log.name, start=0)
        return "" if self._echo is None else self._echo.next(_PIECE, at_end) or ""


_LOOK = 0.2  # seconds between two reads of the record


def follow(directory: RunDirectory, from_end: bool = False) -> Iterator[Event | None]:
    """Yield all events so far, then each new one, until the run ends or has no supervisor. Yields None after each pause.

    With `from_end`, the events so far are skipped.
    """
    unparsed = Lines(LIMIT)
    try:
        file = directory.events.open("rb")
    except OSError:
        return
    with file:
        if from_end:
            file.seek(0, os.SEEK_END)
        while True:
            alone = not is_unfinished(directory)  # checked before reading, so that its last event is seen
            for line in unparsed.feed(file.read()):
                event = parse_event(line)
                if event is None:
                    continue
                yield event
                if is_final(event, directory):
                    return
            if alone:
                return
            yield None
            time.sleep(_LOOK)
