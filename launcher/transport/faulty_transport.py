"""Close connections to a host on purpose, to inject the fault `podrun --inject link_down`."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence

from ..pod.errors import HostError
from ..pod.pod import Host
from .base import Channel, Transport


class FaultyTransport(Transport):
    """A transport that can close the connections to a host and reject new ones for some time."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.window = inner.window
        self._lock = threading.Lock()
        self._channels: dict[str, weakref.WeakSet[Channel]] = {}
        self._down_until: dict[str, float] = {}

    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        self._check(host.name)
        channel = self._inner.open(host, argv)
        with self._lock:
            self._channels.setdefault(host.name, weakref.WeakSet()).add(channel)
        try:
            self._check(host.name)  # the link may have been cut meanwhile
        except HostError:
            channel.close()
            raise
        return channel

    def cut(self, host: str, seconds: float) -> None:
        """Close all connections to the host, and reject new ones for `seconds`. May block for some seconds."""
        with self._lock:
            self._down_until[host] = time.monotonic() + seconds
            channels = list(self._channels.pop(host, ()))
        for channel in channels:
            channel.close()

    def prepare(self, host: Host) -> Channel | None:
        self._check(host.name)
        return self._inner.prepare(host)

    def why_over(self, timeout: float = 0.0) -> str | None:
        return self._inner.why_over(timeout)

    def remark(self) -> str | None:
        return self._inner.remark()

    def close(self) -> None:
        self._inner.close()

    def _check(self, host: str) -> None:
        with self._lock:
            if time.monotonic() < self._down_until.get(host, 0.0):
                raise HostError(host, "its link is down (injected)")
