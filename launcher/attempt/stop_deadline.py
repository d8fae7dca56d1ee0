"""PURE: decide how long a stop waits: the workers' grace period, and then as long as new output arrives."""

from __future__ import annotations

from .failures import SAVE_GRACE

CONFIRM_TIMEOUT = 12.0  # seconds without news from agents that must still confirm their end
_TELL_AFTER = 3.0  # seconds for which output may still come in until the user is told what podrun waits for


class StopDeadline:
    """The limit of a stop. `now` is in seconds in which the launcher was not suspended."""

    def __init__(self) -> None:
        self.granted: float | None = None
        """Grace period in seconds that the workers were given last."""
        self._until = 0.0
        self._latest = float("inf")
        self._newest = 0.0
        self._progressed = 0.0
        self._told = False

    def grant(self, grace: float, now: float) -> float:
        """Give the workers `grace` seconds from now. Return the seconds that they get.

        If a save was granted before, another one does not extend the time.
        """
        if grace == SAVE_GRACE:
            self._latest = min(self._latest, now + grace)
        self.granted, self._until = grace, min(now + grace, self._latest)
        return max(0.0, self._until - now)

    def is_over(self, now: float, newest: float) -> bool:
        """Return True if the stop no longer waits for hosts that have not confirmed it.

        `newest`: the time, on any clock, at which one of these hosts last sent something new.
        """
        if newest > self._newest:
            self._newest, self._progressed = newest, now
        return now - max(self._progressed, self._until) >= CONFIRM_TIMEOUT

    def is_to_be_told(self, now: float) -> bool:
        """Return True once, when all processes must have ended and output still arrives, so that the user is told of it."""
        long = now > self._until + _TELL_AFTER
        self._told, before = self._told or long, self._told
        return long and not before
