"""What the launcher sends: lines, and parts of a known length. Its end is the end of the command."""

from __future__ import annotations

import json
import os
from typing import Any, Dict

CHUNK = 1 << 16


class GoneError(Exception):
    """The launcher went away, or its connection did."""


class Stdin:
    """Buffers by hand: who waits for something else, too, must know what is unread."""

    def __init__(self, fd: int = 0) -> None:
        self.fd = fd
        self._unread = b""

    def frame(self) -> Dict[str, Any]:
        """The next line. Raises GoneError."""
        while b"\n" not in self._unread:
            self.fill()
        line, _, self._unread = self._unread.partition(b"\n")
        frame: Dict[str, Any] = json.loads(line)
        return frame

    def take(self, size: int) -> bytes:
        """At most `size` bytes, at least one. Raises GoneError."""
        if not self._unread:
            self.fill()
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def fill(self) -> None:
        """Waits for more. Raises GoneError at the end."""
        data = os.read(self.fd, CHUNK)
        if not data:
            raise GoneError()
        self._unread += data


class Part:
    """The next `size` bytes of stdin as a file."""

    def __init__(self, stdin: Stdin, size: int) -> None:
        self._stdin = stdin
        self._left = size

    def read(self, size: int = CHUNK) -> bytes:
        """Raises GoneError if stdin ends within the part."""
        if self._left == 0:
            return b""
        data = self._stdin.take(min(size, self._left))
        self._left -= len(data)
        return data
