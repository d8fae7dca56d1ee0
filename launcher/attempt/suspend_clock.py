"""A clock that runs only while this process does: a launcher that was suspended must not blame hosts for it."""

from __future__ import annotations

import time
from collections.abc import Callable

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # on macOS, CLOCK_MONOTONIC includes sleep


def boottime() -> float:
    """Return the seconds since this machine started, including suspensions (time.monotonic() does not count them)."""
    return time.clock_gettime(_CLOCK)


ASLEEP = 5.0  # seconds between two looks at a clock after which this process must have been stopped, or its machine suspended


class SuspendClock:
    """A clock that notices when this process was suspended. It must be read all the time.

    If more than `limit` seconds pass between two readings, the process was suspended meanwhile, and they are not counted.
    Not thread-safe: each thread would hide a suspension from the others.
    """

    def __init__(self, limit: float, clock: Callable[[], float] = boottime) -> None:
        self._limit = limit
        self._clock = clock
        self._last = clock()
        self._now = 0.0
        self._slept = 0.0
        self._woke = 0.0

    def now(self) -> float:
        """Return the seconds since this clock was created, without suspensions."""
        at = self._clock()
        passed, self._last = at - self._last, at
        if passed > self._limit:
            self._slept, self._woke = passed, at
        else:
            self._now += passed
        return self._now

    def slept(self, within: float) -> float:
        """Return the seconds of the last suspension; 0 if it ended more than `within` seconds ago."""
        return self._slept if self._clock() - self._woke <= within else 0.0
