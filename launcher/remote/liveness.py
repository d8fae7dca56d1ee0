"""Record when an agent was heard, and whether it answers pings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Liveness:
    """The times at which an agent was heard and pinged. Written by its session, read by any thread."""

    def __init__(self, limit: float) -> None:
        """Start the clock. `limit`: seconds after which a connection without an answer to a ping counts as dead."""
        self.limit = limit
        self.trouble = ""
        """Why reconnecting has failed since the agent was last heard; empty if it has not."""
        self.ended: float | None = None
        """Time at which the last connection on which the agent was heard has ended; None before that."""
        self.is_delivering = False
        """True while a frame of the agent is being handled. During that time it does not count as silent."""
        self._heard = self._progressed = time.monotonic()
        self._asked = self._connected = 0.0

    @property
    def heard(self) -> float:
        """Return the time at which the agent last sent anything; the current time while a frame is being handled."""
        return time.monotonic() if self.is_delivering else self._heard

    @property
    def silence(self) -> float:
        """Return the seconds since the agent last sent anything."""
        return time.monotonic() - self.heard

    @property
    def progressed(self) -> float:
        """Return the time at which the agent last sent something new: state, events or output."""
        return time.monotonic() if self.is_delivering else self._progressed

    @property
    def unanswered_since(self) -> float | None:
        """Return the time of the first ping that the agent has not answered; None if it has answered all."""
        return self._asked if self.heard < self._asked else None

    def connect(self) -> None:
        """Record a new connection. The agent has the whole limit to answer on it."""
        self._connected = time.monotonic()

    def ping(self) -> bool:
        """Record a ping. Returns True if an earlier ping was unanswered for so long that the connection counts as dead."""
        now = time.monotonic()
        if self.unanswered_since is None:
            self._asked = now
            return False
        return now - max(self._asked, self._connected) > self.limit

    def hear(self) -> None:
        """Record that something was received."""
        self._heard = time.monotonic()
        self.trouble = ""

    def progress(self) -> None:
        """Record that something new was received, or that a new attempt begins."""
        self._progressed = time.monotonic()

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """Do not count the time of the `with` block as silence, because the launcher is slow, not the agent."""
        self.is_delivering = True
        try:
            yield
        finally:
            self._heard, self.is_delivering = time.monotonic(), False

    def end(self, begun: float) -> None:
        """Record the end of a connection. `begun`: the time at which it was opened."""
        if self._heard > begun:
            self.ended = time.monotonic()
