"""Lines to an agent and from it, the deadline, and the last words."""

from __future__ import annotations

import threading

import pytest

from podrun.launcher.remote.conversation import deadline, drain, last_stderr_line, lines, send_frame
from podrun.launcher.transport.base import Channel


class Scripted(Channel):
    """Channel that delivers these pieces, then ends, or waits until it is closed."""

    def __init__(self, *pieces: bytes, stderr: str = "", hangs: bool = False, broken: bool = False) -> None:
        self._pieces = list(pieces)
        self._stderr = stderr
        self._broken = broken
        self.sent = b""
        self._closed = threading.Event()
        if not hangs:
            self._closed.set()

    def send(self, data: bytes) -> None:
        if self._broken:
            raise BrokenPipeError
        self.sent += data

    def finish(self) -> None:
        pass

    def receive(self) -> bytes:
        if self._pieces:
            return self._pieces.pop(0)
        assert self._closed.wait(60)
        return b""

    def close(self) -> None:
        self._closed.set()

    def stderr_tail(self) -> str:
        return self._stderr

    def exit_code(self) -> int | None:
        return 0


def test_lines_are_whole_whatever_the_pieces() -> None:
    """And every piece is heard, also one without the end of a line."""
    heard: list[int] = []
    channel = Scripted(b"one\ntw", b"o", b"\n\nthree")
    assert list(lines(channel, heard=lambda: heard.append(1))) == [b"one", b"two"]
    assert len(heard) == 3


def test_a_frame_is_a_line_and_a_lost_connection_no_error() -> None:
    channel = Scripted()
    assert send_frame(channel, {"type": "x"}) and channel.sent == b'{"type": "x"}\n'
    assert not send_frame(Scripted(broken=True), {"type": "x"})


def test_a_deadline_ends_the_wait() -> None:
    channel = Scripted(b"x", hangs=True)
    with deadline(0.01, channel.close) as late:
        drain(channel)
    assert late.is_set()


@pytest.mark.parametrize("seconds", [60.0, None])
def test_a_deadline_that_is_kept_does_nothing(seconds: float | None) -> None:
    channel = Scripted(b"x", hangs=True)
    with deadline(seconds, channel.close) as late:
        assert channel.receive() == b"x"
    assert not late.is_set()


@pytest.mark.parametrize(("stderr", "last"), [("", ""), ("a\nb", "b"), ("one", "one")])
def test_the_last_line_of_stderr(stderr: str, last: str) -> None:
    assert last_stderr_line(Scripted(stderr=stderr)) == last
