"""podrun on a terminal of its own, as a person uses it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import subprocess
import termios
import threading

from .conftest import Sandbox
from .hosts import wait_until

_ESCAPES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")
_CTRL_C = b"\x03"


class OnTerminal:
    """A podrun on a terminal, and what the terminal has got from it."""

    def __init__(self, sandbox: Sandbox, *args: str) -> None:
        self._ours, theirs = pty.openpty()
        self._got = bytearray()

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C becomes a signal

        self.process = subprocess.Popen(
            [*sandbox.command, *args],
            cwd=sandbox.path,
            env={**sandbox.env, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=take_terminal,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # how Linux says that nobody has the other end open
                return
            if not data:
                return
            self._got += data

    @property
    def text(self) -> str:
        """Return what was shown, without escape codes."""
        return _ESCAPES.sub("", self._got.decode(errors="replace")).replace("\r", "\n")

    def wait_for(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.text.count(text) >= count or self.process.poll() is not None, f"{text!r}", 120)
        assert self.text.count(text) >= count, self.text[-3000:]

    def press_ctrl_c(self) -> None:
        os.write(self._ours, _CTRL_C)

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(120)
        self._reader.join(60)
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._reader.join(60)
        os.close(self._ours)
