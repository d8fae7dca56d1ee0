"""Decide how long a stop waits: the grace period of the workers, and then as long as anything new arrives."""

from __future__ import annotations

from collections.abc import Sequence

from ..remote.session import Session
from .failures import SAVE_GRACE
from .suspend_clock import AwakeClock

CONFIRM_TIMEOUT = 12.0  # seconds without news from agents that must still confirm their end
_TELL_AFTER = 3.0  # seconds for which output may still come in until the user is told what podrun waits for


class Patience:
    """Patience of the supervisor with hosts that it has asked to stop."""

    def __init__(self, clock: AwakeClock) -> None:
        self._clock = clock
        self.granted: float | None = None
        """Grace period in seconds that the workers were given last."""
        self._until = 0.0
        self._latest = float("inf")
        self._newest = 0.0
        self._progressed = 0.0
        self._told = False

    def grant(self, grace: float) -> float:
        """Give the workers `grace` seconds from now. Return what they get: a later save adds nothing to the first."""
        now = self._clock.now()
        if grace == SAVE_GRACE:
            self._latest = min(self._latest, now + grace)
        self.granted, self._until = grace, min(now + grace, self._latest)
        return max(0.0, self._until - now)

    def lasts(self, sessions: Sequence[Session]) -> bool:
        """Return False when the hosts that have not confirmed their end have been given up."""
        now = self._clock.now()
        newest = max((s.progressed for s in sessions), default=0.0)
        if newest > self._newest:
            self._newest, self._progressed = newest, now
        return now - max(self._progressed, self._until) < CONFIRM_TIMEOUT

    def is_to_be_told(self) -> bool:
        """Return True once, if nothing may run any more and output still comes in."""
        long = self._clock.now() > self._until + _TELL_AFTER
        self._told, before = self._told or long, self._told
        return long and not before
