"""Keep the leases of all agents alive, and notice silent hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..remote.session import Session
from .suspend_clock import SuspendClock

_EVERY = 2.5  # seconds between two rounds of pings; agents answer each
MOST = 250  # pings in a round, so that pings of a thousand hosts do not take the time in which they should get on


class Heartbeat:
    """Thread that renews the leases of agents, so that slow printing or recording of events does not end them."""

    def __init__(self, active: Callable[[], list[Session]], lease: float, answer: float | None = None) -> None:
        """Start the thread.

        Args:
            active: returns the sessions to keep alive.
            lease: seconds that agents live without a ping.
            answer: seconds in which a host must answer; None: the lease.
        """
        self._active = active
        self._lease = lease
        self._every = min(_EVERY, lease / 4)
        self._answer = (answer or lease) - self._every
        self._next = 0  # session that is pinged first in the next round
        self._unanswered: list[Session] = []  # sessions that were pinged and had not answered in the last round
        self._clock = SuspendClock(limit=2 * self._every)
        self._finished = threading.Event()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        self._finished.set()

    def slept(self, within: float) -> float:
        """Return the seconds of this process's last suspension; 0 if it ended more than `within` seconds ago."""
        return self._clock.slept(within)

    def _run(self) -> None:
        awake = time.monotonic()
        while not self._finished.wait(self._every):
            now = time.monotonic()
            self._clock.now()
            if self._clock.slept(within=self._every):  # the launcher slept; the hosts were not silent
                awake = now
            self._round(now, awake)

    def _round(self, now: float, awake: float) -> None:
        """Give up silent hosts, and ping the next ones."""
        sessions = self._active()
        # Only a session that was pinged can be silent: of ten thousand that answer, a few hundred are looked at.
        self._unanswered = [
            s for s in self._unanswered if s.liveness.unanswered_since is not None and not s.has_stopped
        ]
        if self._unanswered:
            self._give_up([s for s in sessions if not s.has_stopped], now, awake)
        due = self._due(sessions)
        for session in due:
            session.ping()
            self._clock.now()
        self._unanswered = list(dict.fromkeys([*self._unanswered, *due]))

    def _due(self, sessions: list[Session]) -> list[Session]:
        """Return the sessions to ping in this round: all of them, or the next group if there are very many."""
        first = self._next if self._next < len(sessions) else 0
        self._next = first + MOST
        return sessions[first : self._next]

    def _give_up(self, sessions: list[Session], now: float, awake: float) -> None:
        """Give up the hosts that were silent for too long. If all are silent, give up none: this machine is cut off."""
        # Silence is an unanswered ping: with a thousand hosts on a busy machine the pings themselves may be late.
        silent = [s for s in sessions if now - max(s.liveness.unanswered_since or now, awake) > self._answer]
        if not silent:
            return
        cut_off = len(silent) == len(sessions)
        if cut_off and now - max(s.liveness.heard for s in silent) <= self._lease:
            return
        for session in silent:
            session.give_up(f"has not answered for {now - session.liveness.heard:.0f} s: it is down, or its network is")
