"""Functions for the exchange of lines with an agent: send, receive, set a deadline, read the last error message.

Sending never raises. A lost connection ends the channel early, which its reader notices.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..agent.base.protocol import LIMIT, Lines
from ..agent.base.to_agent import Sent
from ..transport.base import Channel


def send(channel: Channel, data: bytes) -> bool:
    """Send the data. Return whether that succeeded; if not, reading the channel gives the reason."""
    try:
        channel.send(data)
    except OSError:
        return False
    return True


def send_frame(channel: Channel, frame: Sent) -> bool:
    """Send the frame as a line. Return whether that succeeded; if not, reading the channel gives the reason."""
    return send(channel, json.dumps(frame).encode() + b"\n")


def lines(channel: Channel, limit: int = LIMIT, heard: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """Yield lines until the channel ends. Cuts lines longer than `limit` bytes, and calls `heard` whenever data arrives."""
    unparsed = Lines(limit)
    while data := channel.receive():
        heard()
        yield from unparsed.feed(data)


def drain(channel: Channel) -> None:
    """Read until the channel ends, and discard the data."""
    while channel.receive():
        pass


@contextmanager
def deadline(seconds: float | None, action: Callable[[], None]) -> Iterator[threading.Event]:
    """Call `action` in a thread, and set the yielded event, if the `with` block takes longer than `seconds` (None: never)."""
    late = threading.Event()
    if seconds is None:
        yield late
        return

    def act() -> None:
        late.set()
        action()

    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def last_stderr_line(channel: Channel) -> str:
    """Return the last line of the command's stderr, which may say why it ended; empty if there is none."""
    return (channel.stderr_tail().splitlines() or [""])[-1]
