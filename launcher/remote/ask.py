"""Query one host: start an agent command that answers with one JSON line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..agent.base.from_agent import parse_answer
from ..agent.base.protocol import Malformed
from ..agent.base.to_agent import Request
from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from ..transport.base import Channel, Transport
from .conversation import deadline, drain, last_stderr_line, lines, send_frame
from .open_agent import open_agent


class Reply(NamedTuple):
    """An answer, and this machine's time.time() when the request was sent and when the answer arrived."""

    answer: Any
    """The checked answer, as `from_agent.ANSWERS` declares it."""
    sent: float
    received: float


ANSWER_LIMIT = 40.0  # seconds; longer than any fact may take
_END_LIMIT = 5.0  # seconds for a command to clean up


def ask(
    transport: Transport,
    pod: Pod,
    host: Host,
    *args: str,
    request: Request | None = None,
    limit: float = ANSWER_LIMIT,
) -> Reply:
    """Start `agent ARGS` on the host and return its answer. Raises HostError if there is none within `limit` seconds."""
    with asking(transport, pod, host, *args, request=request, limit=limit) as reply:
        return reply


@contextmanager
def asking(
    transport: Transport,
    pod: Pod,
    host: Host,
    *args: str,
    request: Request | None = None,
    limit: float = ANSWER_LIMIT,
) -> Iterator[Reply]:
    """Yield the answer of an agent command that keeps running. The command is ended at the end of the `with` block."""
    channel = open_agent(transport, pod, host, *args)
    try:
        sent = time.time()
        if request is not None:
            send_frame(channel, request)
        answer = _read(channel, host, args[0], limit)
        yield Reply(answer, sent, time.time())
        channel.finish()
        with deadline(_END_LIMIT, channel.close):
            drain(channel)
    finally:
        channel.close()


def _read(channel: Channel, host: Host, command: str, limit: float) -> Any:
    """Read the answer of an agent command from its channel. Raises HostError."""
    try:
        with deadline(limit, channel.close) as late:
            line = next(lines(channel), None)
        if line is None:
            raise HostError(host.name, _failure_reason(channel, late.is_set(), limit))
        return parse_answer(line, command)
    except Malformed as why:
        raise HostError(host.name, f"sent a malformed answer to `{command}`: {why}") from None


def _failure_reason(channel: Channel, late: bool, limit: float) -> str:
    if late:
        return f"did not answer within {limit:g} s; see whether it is overloaded, or a file system hangs there"
    last = last_stderr_line(channel)
    return f"its agent ended before it answered: {last}" if last else "the connection ended before it answered"
