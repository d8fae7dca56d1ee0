"""Where events go: to the console, and on record."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable

from podrun.runtime.contract import Event, EventKind

from ..record.runs import Recorder
from .console import Console

# Titles and other operating system commands, then all that moves the cursor or erases; CSI ... m is a colour.
_CONTROL = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-9;?]*[A-Za-ln-z]|[\x00-\x08\x0b-\x1a]")


class View:
    """The console and the recorder. A console whose output nobody reads any more counts as a closed terminal: SIGHUP."""

    def __init__(self, console: Console, recorder: Recorder) -> None:
        self._console: Console | None = console
        self._recorder = recorder
        self._one_at_a_time = threading.RLock()  # hosts are prepared by several threads
        self._echo = False
        self._partial = b""

    def event(self, event: Event) -> None:
        with self._one_at_a_time:
            self._recorder.event(event)
            if event["event"] == EventKind.START:
                self._echo, self._partial = event["program"] is not None, b""
            elif self._partial and event["event"] == EventKind.HOST and event["phase"] == "stopped":
                self.output(0, b"\n")  # all output has come: the last line has no end
            self._show(lambda console: console.event(event))

    def output(self, process: int, data: bytes) -> None:
        """A program of the user's own says what it does by printing. Its first process is shown; all are in the logs."""
        if self._echo and process == 0:
            *lines, self._partial = (self._partial + data).split(b"\n")
            if lines:
                self._show(lambda console: console.output("\n".join(map(last_state, lines))))

    def say(self, text: str) -> None:
        self._show(lambda console: console.say(text))

    def stop(self) -> None:
        self._show(lambda console: console.stop())

    def _show(self, action: Callable[[Console], None]) -> None:
        if self._console is None:
            return
        try:
            action(self._console)
        except OSError:
            self._console = None
            # What Python still has buffered for it would fail once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            signal.raise_signal(signal.SIGHUP)


def last_state(line: bytes) -> str:
    """A progress bar goes back to the start of its line: what it shows last. Of control sequences only colours stay."""
    return _CONTROL.sub("", line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace"))
