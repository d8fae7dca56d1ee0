"""Keeps the leases of all agents alive, and notices hosts that have fallen silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .plan import NETWORK_LEASE
from .session import Session

_EVERY = 2.5  # seconds between two pings; agents answer each


class Heartbeat:
    """A thread of its own, so that no lease depends on how long it takes to show or record an event."""

    def __init__(self, active: Callable[[], list[Session]], lease: float) -> None:
        """`active`: the sessions that should answer just now; `lease`: seconds that the agents go on without a word."""
        self._active = active
        self._lease = lease
        self._patience = min(NETWORK_LEASE, lease)
        self._over = threading.Event()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        awake = last = time.monotonic()
        while not self._over.wait(_EVERY):
            now = time.monotonic()
            if now - last > 2 * _EVERY:  # this machine was suspended: it is not the hosts that were silent
                awake = now
            last = now
            sessions = self._active()
            for session in sessions:
                session.ping()
            self._give_up(sessions, now, awake)

    def _give_up(self, sessions: list[Session], now: float, awake: float) -> None:
        """Of hosts that have been silent for too long, unless all are: then it is this machine that is cut off."""
        silent = [s for s in sessions if now - max(s.heard, awake) > self._patience]
        if not silent:
            return
        cut_off = len(silent) == len(sessions)
        if cut_off and now - max(s.heard for s in silent) <= self._lease:
            return
        for session in silent:
            session.give_up(f"has not answered for {now - session.heard:.0f} s: it is down, or its network is")
