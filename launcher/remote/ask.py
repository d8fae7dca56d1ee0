"""Ask one host: start an agent command that answers with one JSON line."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..agent.protocol import LIMIT, Lines, Malformed, parse_answer
from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from ..transport.base import Channel, Transport
from .open_agent import open_agent

Answer = dict[str, Any]


class Reply(NamedTuple):
    """An answer, with this machine's time.time() when the question left and when the answer came."""

    answer: Answer
    sent: float
    received: float


ANSWER_LIMIT = 40.0  # seconds; longer than any fact may take
_END_LIMIT = 5.0  # seconds for a command to tidy up


def ask(transport: Transport, pod: Pod, host: Host, *args: str, request: Answer | None = None) -> Reply:
    """Start `agent ARGS` on the host and return its answer. Raises HostError if there is none."""
    with asking(transport, pod, host, *args, request=request) as reply:
        return reply


@contextmanager
def asking(transport: Transport, pod: Pod, host: Host, *args: str, request: Answer | None = None) -> Iterator[Reply]:
    """Yield the answer of a command that keeps running after it. At the end of the block the command has ended."""
    channel = open_agent(transport, pod, host, *args)
    try:
        sent = time.time()
        if request is not None:
            _send(channel, request)
        answer = _read(channel, host, args[0])
        yield Reply(answer, sent, time.time())
        channel.finish()
        with _closed_after(_END_LIMIT, channel):
            while channel.receive():
                pass
    finally:
        channel.close()


def _send(channel: Channel, request: Answer) -> None:
    try:
        channel.send(json.dumps(request).encode() + b"\n")
    except OSError:
        pass  # reading the answer will say more


def _read(channel: Channel, host: Host, command: str) -> Answer:
    """Return the answer that the channel delivers. Raises HostError."""
    lines: list[bytes] = []
    unparsed = Lines(LIMIT)
    with _closed_after(ANSWER_LIMIT, channel) as late:
        while not lines and (data := channel.receive()):
            lines = unparsed.feed(data)
    if not lines:
        raise HostError(host.name, _failure_reason(channel, late.is_set()))
    try:
        return parse_answer(lines[0], command)
    except Malformed as why:
        raise HostError(host.name, f"sent a malformed answer to `{command}`: {why}") from None


@contextmanager
def _closed_after(seconds: float, channel: Channel) -> Iterator[threading.Event]:
    """Close the channel, and set the event, if the block takes too long."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        channel.close()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _failure_reason(channel: Channel, late: bool) -> str:
    if late:
        return f"did not answer within {ANSWER_LIMIT:g} s; see whether it is overloaded, or a file system hangs there"
    last = channel.stderr_tail().splitlines()[-1:]
    return f"its agent ended before it answered: {last[0]}" if last else "the connection ended before it answered"
