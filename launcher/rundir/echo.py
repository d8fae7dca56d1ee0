"""Echo the output of the first process of a user program on the console.

The log is read at the console's own pace, so neither the workers nor the hosts wait for a slow console.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO

from ..pod.pod import process_name
from .events import StartEvent
from .log_view import is_overwritten, visible
from .logs import size_of

_BEHIND = 1 << 20  # bytes of backlog that are skipped, since nobody reads that much in a terminal
_SHOWN = 1 << 14  # last bytes of a skipped backlog that are shown


def echoed_log(start: StartEvent) -> Path | None:
    """Return the log of a user program's first process; None for podrun's runtime, which reports events instead."""
    if start["program"] is None:
        return None
    host, processes = next(iter(start["hosts"].items()))
    return Path(start["logs"]) / f"{process_name(host, processes[0], len(processes))}.log"


class Echo:
    """Reader of a growing log, from its current end or from `start` on."""

    def __init__(self, log: Path, start: int | None = None) -> None:
        self._log = log
        self._start = size_of(log) if start is None else start
        self._file: IO[bytes] | None = None
        self._partial = b""

    def next(self, size: int, at_end: bool = False) -> str | None:
        """Return the next lines, about `size` bytes, and a longer line in pieces; None if there is nothing new.

        `at_end`: the log is complete, so return an unfinished line as well.
        """
        file = self._open()
        while file is not None and (data := file.read(size)):
            *lines, self._partial = (self._partial + data).split(b"\n")
            if len(self._partial) >= size:
                lines.append(self._partial)
                self._partial = b""
            if shown := [last_state(line) for line in lines if not is_overwritten(line)]:
                return "\n".join(shown)
        if at_end and self._partial:
            rest, self._partial = self._partial, b""
            return last_state(rest)
        return None

    def skip(self, behind: int = _BEHIND) -> str | None:
        """Skip output if more than `behind` bytes are left. Returns a message about it; None if nothing was skipped."""
        file = self._open()
        left = 0 if file is None else size_of(self._log) - file.tell()
        if file is None or left <= behind:
            return None
        shown = min(behind, _SHOWN)
        file.seek(left - shown, os.SEEK_CUR)
        self._partial = b""
        file.readline(shown)
        return f"... {(left - shown) / 1e6:.1f} MB are not shown here: {self._log} has all"

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> IO[bytes] | None:
        if self._file is None:
            try:
                self._file = self._log.open("rb")
                self._file.seek(self._start)
            except OSError:
                return None  # nothing has been printed yet
        return self._file


_SIGTERM_CAUGHT = re.compile(rb"[IWE]\d{4} .*\bpreemption_notifier\.cc:\d+\] SIGTERM caught at ")
"""Matches a line that JAX prints after `podrun stop` or Ctrl-C. It looks like an error, so only the log shows it."""


def last_state(line: bytes) -> str:
    """Return a line in its last state: a progress bar overwrites its line. A warning of JAX is replaced by its meaning."""
    if _SIGTERM_CAUGHT.match(line):
        return "the process was asked to stop: it ends after its step"
    return visible(line).decode(errors="replace")
