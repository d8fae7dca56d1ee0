"""Functions for a conversation with an agent: send and receive lines, set a deadline, read its last error message.

Sending never raises. A lost connection ends the channel early, so whoever reads it notices.
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
    """Yield lines until the channel ends; too long ones are cut at `limit`. `heard` is called whenever data arrives."""
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
    """Call `action` in a thread, and set the event, if the block takes longer than `seconds`. None: there is no limit."""
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


def last_words(channel: Channel) -> str:
    """Return the last line of the command's stderr, the reason if it ended too early; empty if there is none."""
    return (channel.stderr_tail().splitlines() or [""])[-1]
