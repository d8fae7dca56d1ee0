"""Read lines, and data of a known size, from the launcher over stdin."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Tuple

from .processes import ENDING
from .schema import Check, Malformed, loads
from .to_agent import REQUESTS

CHUNK = 1 << 16


class GoneError(Exception):
    """The launcher, or the connection to it, is gone."""


def end_with_signals() -> None:
    """Let the signals that ask this process to end raise GoneError."""
    for number in ENDING:
        signal.signal(number, _end)


def _end(number: int, frame: Any) -> None:
    raise GoneError()


class Stdin:
    """Buffered stdin on whose descriptor callers can also use `select`."""

    def __init__(self, fd: int = 0, unread: bytes = b"") -> None:
        """`unread`: bytes that have been read from `fd` already."""
        self.fd = fd
        self._unread = unread

    def frame(self, check: Check) -> Any:
        """Return the next line, an object that `check` accepts; if it does not, the command ends. Raises GoneError."""
        while b"\n" not in self._unread:
            self.fill()
        line, _, self._unread = self._unread.partition(b"\n")
        return _checked(line, check)

    def take(self, size: int) -> bytes:
        """Return at least one and at most `size` bytes. Raises GoneError."""
        if not self._unread:
            self.fill()
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def fill(self) -> None:
        """Wait for more data. Raises GoneError at the end of stdin."""
        data = os.read(self.fd, CHUNK)
        if not data:
            raise GoneError()
        self._unread += data


class Part:
    """A file object that reads the next `size` bytes of stdin."""

    def __init__(self, stdin: Stdin, size: int) -> None:
        self._stdin = stdin
        self._left = size

    def read(self, size: int = CHUNK) -> bytes:
        """Return up to `size` bytes; empty at the end of the part. Raises GoneError if stdin ends before that."""
        if self._left == 0:
            return b""
        data = self._stdin.take(min(size, self._left))
        self._left -= len(data)
        return data


def read_request(command: str) -> Any:
    """Return the request of a command, a line of stdin. If it is malformed, the command ends."""
    return _checked(read_line(0)[0], REQUESTS[command])


def _checked(line: bytes, check: Check) -> Any:
    try:
        request = loads(line, len(line))
        check(request)
    except Malformed as why:
        sys.exit("malformed request: %s" % why)
    return request


def read_line(fd: int, data: bytes = b"") -> Tuple[bytes, bytes]:
    """Return the first line of `fd` and the bytes read after it. `data`: bytes read before. Exits if `fd` ends."""
    while b"\n" not in data:
        chunk = os.read(fd, CHUNK)
        if not chunk:
            sys.exit("the connection ended before the request arrived")
        data += chunk
    line, _, rest = data.partition(b"\n")
    return line, rest
