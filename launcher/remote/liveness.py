"""Note when an agent was heard, and whether it answers pings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Liveness:
    """The times at which an agent was heard and asked. Written by its session, read by any thread."""

    def __init__(self, limit: float) -> None:
        """Begin now. `limit`: seconds without an answer to a ping after which a connection counts as dead."""
        self.limit = limit
        self.trouble = ""
        """Reason why reconnecting has failed since the agent was last heard."""
        self.ended: float | None = None
        """Time at which the last connection ended on which the agent was heard; None before."""
        self.is_delivering = False
        """A frame of the agent is being handled, during which it is not silent."""
        self._heard = self._progressed = time.monotonic()
        self._asked = self._connected = 0.0

    @property
    def heard(self) -> float:
        """Time at which the agent last sent anything; now, while its last frame is being delivered."""
        return time.monotonic() if self.is_delivering else self._heard

    @property
    def silence(self) -> float:
        """Seconds since the agent last sent anything."""
        return time.monotonic() - self.heard

    @property
    def progressed(self) -> float:
        """Time at which the agent last sent something new: state, events or output."""
        return time.monotonic() if self.is_delivering else self._progressed

    @property
    def unanswered_since(self) -> float | None:
        """Time of a ping that the agent has not answered yet; None if it has answered."""
        return self._asked if self.heard < self._asked else None

    def connect(self) -> None:
        """Note a new connection, on which the agent has the whole limit to answer."""
        self._connected = time.monotonic()

    def ping(self) -> bool:
        """Note a ping. Returns whether an earlier one has not been answered for too long, so that the connection is dead."""
        now = time.monotonic()
        if self.unanswered_since is None:
            self._asked = now
            return False
        return now - max(self._asked, self._connected) > self.limit

    def hear(self) -> None:
        """Note that something was received."""
        self._heard = time.monotonic()
        self.trouble = ""

    def progress(self) -> None:
        """Note that something new was received, or that a new attempt begins."""
        self._progressed = time.monotonic()

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """Count the time within as no silence: it is the launcher that is slow."""
        self.is_delivering = True
        try:
            yield
        finally:
            self._heard, self.is_delivering = time.monotonic(), False

    def end(self, begun: float) -> None:
        """Note the end of a connection that was begun at this time."""
        if self._heard > begun:
            self.ended = time.monotonic()
