"""The launcher's connection to a command that prepares this host."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Union

from ..base.problem import Problem
from ..base.stdin import GoneError, Stdin
from ..base.tool import ALIVE

if TYPE_CHECKING:
    from ..base.from_agent import FromBring, FromPrepare


class Launcher:
    """The connection to the launcher. Any thread may send; only one may read."""

    def __init__(self, stdin: Stdin) -> None:
        self.stdin = stdin
        self._last_sent = time.monotonic()
        self._sending = threading.Lock()

    def answer(self, frame: Union[FromPrepare, FromBring]) -> None:
        """Send a frame. Raises GoneError."""
        data = json.dumps(frame).encode() + b"\n"
        with self._sending:
            try:
                while data:
                    data = data[os.write(1, data) :]
            except BrokenPipeError:
                raise GoneError()
            self._last_sent = time.monotonic()

    def report(self, problem: Problem) -> None:
        """Send an `error`, if the launcher is still there."""
        try:
            self.answer({"type": "error", "what": problem.what, "remedy": problem.remedy})
        except GoneError:
            pass

    def alive(self) -> None:
        """Send `alive` if nothing was sent for a while. Raises GoneError."""
        if time.monotonic() - self._last_sent > ALIVE:
            self.answer({"type": "alive"})
