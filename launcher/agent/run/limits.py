"""Decide how long workers may run: the launcher's lease, and the deadline of a stop."""

from __future__ import annotations

import time
from typing import Optional

ATTACH_TIMEOUT = 60.0  # seconds for the launcher to attach; its lease begins then


class Lease:
    """Time without a frame from the launcher after which the agent stops."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.heard = time.monotonic()  # when the launcher was last heard
        self.is_attached = False
        self.has_expired = False

    def limit(self) -> float:
        """Return the seconds of silence that are allowed now."""
        return self.seconds if self.is_attached else max(ATTACH_TIMEOUT, self.seconds)

    def renew(self) -> None:
        self.heard = time.monotonic()

    def extend(self, seconds: float) -> None:
        """Do not count `seconds` in which the agent could not hear the launcher."""
        self.heard += max(0.0, seconds)

    def expires(self) -> bool:
        """Return True once, when the lease has expired. Sets `has_expired`."""
        before, self.has_expired = self.has_expired, time.monotonic() - self.heard > self.limit()
        return self.has_expired and not before


class Ending:
    """The end of an attempt's workers: the reason, the deadline, and whether it is over."""

    def __init__(self) -> None:
        self.reason: Optional[str] = None
        """The reason for the stop; None while the workers may run."""
        self.kill_at: Optional[float] = None
        """Time at which the stop becomes a kill."""
        self.is_over = False
        """True once no process is left, as far as the agent could end them."""

    def ask(self, grace: float, reason: str) -> bool:
        """Ask for a stop, with a kill after `grace` seconds. Returns whether it is the first stop, whose reason stays."""
        self.kill_at = time.monotonic() + grace
        is_first = self.reason is None
        if is_first:
            self.reason = reason
        return is_first

    def seconds_left(self) -> Optional[float]:
        """Return the seconds until the kill; None if no kill is due."""
        return None if self.kill_at is None or self.is_over else max(0.0, self.kill_at - time.monotonic())
