"""Talk to the launcher of a command that prepares this host."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from ..base.stdin import GoneError, Stdin
from ..base.tool import ALIVE


class Launcher:
    """The connection to the launcher. Any thread may answer; one reads."""

    def __init__(self, stdin: Stdin) -> None:
        self.stdin = stdin
        self._spoke = time.monotonic()
        self._speaking = threading.Lock()

    def answer(self, kind: str, **fields: Any) -> None:
        """Send a frame. Raises GoneError."""
        data = json.dumps(dict(fields, type=kind)).encode() + b"\n"
        with self._speaking:
            try:
                while data:
                    data = data[os.write(1, data) :]
            except BrokenPipeError:
                raise GoneError()
            self._spoke = time.monotonic()

    def answer_if_there(self, kind: str, **fields: Any) -> None:
        try:
            self.answer(kind, **fields)
        except GoneError:
            pass

    def alive(self) -> None:
        if time.monotonic() - self._spoke > ALIVE:
            self.answer("alive")
