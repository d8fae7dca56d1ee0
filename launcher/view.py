"""Where events go: to the console, and on record."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from podrun.runtime.contract import Event

from .console import Console
from .runs import Recorder


class View:
    """The console and the recorder. A console whose output nobody reads any more counts as a closed terminal: SIGHUP."""

    def __init__(self, console: Console, recorder: Recorder) -> None:
        self._console: Console | None = console
        self._recorder = recorder

    def event(self, event: Event) -> None:
        self._recorder.event(event)
        self._show(lambda console: console.event(event))

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
