"""Events of a run as they are recorded: how other shells watch a run that somebody else supervises."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import IO

from podrun.runtime.contract import Event, EventKind

from ..show.view import last_state
from .runs import RunDirectory, parse_event


class Output:
    """What the first process of a program of the user's own prints. (podrun's own runtime reports events instead.)"""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._partial = b""

    def news(self, at_end: bool = False) -> str:
        """Whole lines since the last call; at the end the rest as well."""
        if self._file is None:
            self._file = self._open()
        if self._file is None:
            return ""
        text = self._partial + self._file.read()
        if at_end and text and not text.endswith(b"\n"):
            text += b"\n"
        *lines, self._partial = text.split(b"\n")
        return "\n".join(map(last_state, lines))

    def _open(self) -> IO[bytes] | None:
        start = next(self._directory.read_events(), None)
        if start is None or start.get("program") is None:
            return None
        host, processes = next(iter(start["hosts"].items()))
        try:
            return self._directory.log(host if len(processes) == 1 else f"{host}.{processes[0]}").open("rb")
        except OSError:
            return None


_LOOK = 0.2  # seconds between two looks at the record


def follow(directory: RunDirectory) -> Iterator[Event | None]:
    """All events so far, then each as it comes, until the run has ended or nobody supervises it. None: a moment passed."""
    rest = ""
    with directory.events.open(encoding="utf-8") as file:
        while True:
            alone = directory.supervisor() is None  # asked before reading: what it wrote last is then seen
            text = rest + file.read()
            *lines, rest = text.split("\n")
            for line in lines:
                event = parse_event(line)
                if event is None:
                    continue
                yield event
                if event["event"] == EventKind.END:
                    return
            if alone:
                return
            yield None
            time.sleep(_LOOK)
