"""A channel to a command over SSH."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import paramiko

from ..base import Channel

_END = 2.0  # seconds after the end of stdout for the rest of stderr and the exit status
_CHUNK = 1 << 16
_STDERR = 1 << 16
_KILLED = 255  # ssh's exit code for a command killed by a signal, whose number paramiko does not report


class _DataEvent(threading.Event):
    """An event that is set when data has arrived on stdout or stderr.

    Paramiko clears the event of a stream at its end. Both streams share this one, so `clear` does nothing.
    """

    def clear(self) -> None:
        pass

    def reset(self) -> None:
        super().clear()


class SshChannel(Channel):
    """A channel over SSH.

    `receive` also reads stderr: both streams share one window, so unread stderr would block the command.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._closed = False
        self._broken = False
        self._stderr = b""
        self._reading_stderr = threading.Lock()
        self._data_event = _DataEvent()
        channel.in_buffer.set_event(self._data_event)
        channel.in_stderr_buffer.set_event(self._data_event)

    def send(self, data: bytes) -> None:
        try:
            start = 0
            while start < len(data):
                # paramiko's sendall would loop forever after `finish`
                if not (sent := self._channel.send(data[start : start + _CHUNK])):
                    raise BrokenPipeError("the channel is closed")
                start += sent
        except (EOFError, paramiko.SSHException) as error:
            raise BrokenPipeError("the connection is lost") from error

    def finish(self) -> None:
        try:
            self._channel.shutdown_write()
        except (EOFError, OSError, paramiko.SSHException):
            pass  # the connection is lost

    def receive(self) -> bytes:
        while not self._broken:
            self._data_event.reset()
            ended = self._channel.eof_received or self._channel.closed
            try:
                self._read_stderr()
                if self._channel.recv_ready():
                    return bytes(self._channel.recv(_CHUNK))
            except (EOFError, OSError, paramiko.SSHException):
                # paramiko discards data it has read if it then fails to widen the window
                self._broken = True
            if ended:
                break
            self._data_event.wait()
        return b""

    def close(self) -> None:
        self._closed = True
        try:
            self._channel.close()
        except (EOFError, OSError, paramiko.SSHException):
            pass  # the connection is lost, which ends the command

    def stderr_tail(self) -> str:
        deadline = time.monotonic() + _END
        while True:
            self._data_event.reset()
            ended = self._channel.closed or not self._channel.eof_received
            try:
                self._read_stderr()
            except (EOFError, OSError, paramiko.SSHException):
                self._broken = True
            if ended or self._broken or not self._data_event.wait(max(0.0, deadline - time.monotonic())):
                return self._stderr.decode(errors="replace").strip()

    def exit_code(self) -> int | None:
        if self._channel.status_event.wait(_END) and self._channel.exit_status >= 0:
            return int(self._channel.exit_status)
        killed = self._channel.closed and not self._closed and self._channel.transport.is_active()
        return _KILLED if killed else None

    def _read_stderr(self) -> None:
        with self._reading_stderr:
            while self._channel.recv_stderr_ready():
                self._stderr = (self._stderr + self._channel.recv_stderr(_CHUNK))[-_STDERR:]


def command_line(argv: Sequence[str]) -> bytes:
    """Quote `argv` for the login shell of the host: sh, bash, dash, zsh, ksh or fish.

    Raises ValueError for a NUL, which no command line can contain.
    """
    if any("\0" in word for word in argv):
        raise ValueError("a command line cannot have a NUL in it")
    return " ".join(["exec", *map(_quote, argv)]).encode("utf-8", "surrogateescape")


def _quote(word: str) -> str:
    if word.startswith("~/"):
        return "~/" + (_quote(word[2:]) if word[2:] else "")
    # Inside single quotes fish treats a backslash as an escape, unlike the other shells.
    return "'" + word.replace("\\", "\0").replace("'", "'\"'\"'").replace("\0", "'\"\\\\\"'") + "'"
