"""Hold what a run needs on its host while it runs: the host's lock, and the folders that it uses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Optional

from ..host.lock import HostLock

if TYPE_CHECKING:
    from ..base.to_agent import Spec

MARK_INTERVAL = 300.0  # seconds after which the folders that the run uses are marked as in use again
LOCK_RETRY = 0.5  # seconds between two attempts to take the host's lock


class Claim:
    """The claim of an attempt on its host."""

    def __init__(self, lock: HostLock, spec: Spec) -> None:
        self.lock = lock
        self.spec = spec
        self._next_try = 0.0
        self._waits_since: Optional[float] = None  # since when it waits for another run to release the host
        self._marked = 0.0  # when the folders were last marked

    def is_due(self) -> bool:
        """Return whether it is time to try the lock again, and count that as a try."""
        now = time.monotonic()
        if now < self._next_try:
            return False
        self._next_try = now + LOCK_RETRY
        return True

    def take(self) -> Optional[str]:
        """Take the host's lock if the run needs the host for itself. Returns None, or a text about the run that has it.

        Another agent of the same run may have had the lock until now.
        """
        return self.lock.take(self.spec["run"]) if self.spec["exclusive"] else None

    def waited(self) -> Optional[float]:
        """Return the seconds since this was first called; None at the first call."""
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
            return None
        return now - self._waits_since

    def mark_in_use(self) -> None:
        """Mark the run's folders as in use, at intervals, so that they are not removed."""
        now = time.monotonic()
        if self.spec["uses"] and now - self._marked > MARK_INTERVAL:
            from ..prepare.store import in_use

            self._marked = now
            in_use(*self.spec["uses"])
