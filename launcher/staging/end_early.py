"""Stop the preparation of all hosts after a failure or a Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..pod.errors import HostError
from ..pod.fan_out import fan_out
from ..transport.base import Channel

SETTLE = 2.0  # seconds after the first failure in which other hosts may fail as well


class EndedError(HostError):
    """The preparation of this host was stopped because another host failed."""


class Refusal:
    """Stops the preparation of all hosts after one has failed, with a delay in which others can report failures, too."""

    def __init__(self) -> None:
        self.ended = False
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def end_soon(self, close: Callable[[], None]) -> None:
        def end() -> None:
            self.ended = True
            close()

        with self._lock:
            if self._timer is None:
                self._timer = threading.Timer(SETTLE, end)
                self._timer.daemon = True
                self._timer.start()


class Channels:
    """The open channels of a `with` block. Closes them if the block is interrupted, because threads wait for them."""

    def __init__(self) -> None:
        self._channels: list[Channel] = []
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Channels:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.close()

    def add(self, channel: Channel) -> Channel:
        with self._lock:
            self._channels.append(channel)
            closed = self._closed
        if closed:
            channel.close()
        return channel

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels = list(self._channels)
        fan_out(lambda channel: channel.close(), channels)
