"""PURE: collect the failures of one attempt, and decide when they are enough."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

from .cause import Evidence, Failure, FailureKind, first_cause, is_peer_loss
from .messages import Moment

SETTLE = 2.0  # seconds to wait for the cause when only consequences have been seen
SAVE_GRACE = 60.0  # seconds for a save that has begun when a stop is asked for
Printed = Callable[[str, int], bytes]
"""Called with a host and a process number; returns the end of that process's output."""


class Failures:
    """Collect failures; `cause` returns the first cause."""

    def __init__(self) -> None:
        self.seen: list[Failure] = []
        """Failures in the order in which they happened, as far as that is known."""
        self._times: list[float] = []  # at which they happened
        self.signalled: list[tuple[str, int | None]] = []
        """Processes that have reported a SIGTERM."""
        self._settle_until = 0.0
        self.stopping = False
        """Processes were asked to stop."""
        self._user_stops = False

    def __bool__(self) -> bool:
        return bool(self.seen)

    def add(self, failed: Failure, now: Moment, since: float | None = None) -> None:
        """Add a failure. It is late if the process had been asked to stop before; `exited` may correct that.

        `since`: the time.monotonic() at which it happened, if that was noticed only later.
        """
        late = self.stopping and (self._user_stops or failed.process is not None)
        if not self.seen:
            self._settle_until = now.awake + SETTLE
        happened = now.monotonic if since is None else since
        position = bisect_right(self._times, happened)
        self._times.insert(position, happened)
        self.seen.insert(position, replace(failed, late=failed.late or late))

    def names(self, host: str) -> bool:
        """Return True if a failure of the host itself or of its agent is known."""
        return any(f.host == host and f.process is None for f in self.seen)

    def stop(self, user: bool) -> None:
        """Record that all processes are asked to stop from now on, by the `user` or because of a failure."""
        self.stopping, self._user_stops = True, user

    def exited(self, host: str, process: int, asked: bool) -> None:
        """Record that a process has ended, and whether it had been `asked` to stop before.

        If it had not, its failure counts as one before the stop, even if the report arrived later over a new
        connection.
        """
        if not asked and not self._user_stops:
            self.seen = [replace(f, late=False) if (f.host, f.process) == (host, process) else f for f in self.seen]

    def decided(self, awake: float, saving: bool, printed: Printed) -> bool:
        """Return True if the first cause is certain, or no further failure is expected.

        Args:
            awake: the time now, on a clock that does not count suspends of the launcher.
            saving: processes are saving; those that were preempted may finish first.
            printed: returns the end of a process's output.
        """
        if not self.seen or not all(f.consequence or _blames_peer(f, printed) for f in self.seen):
            return bool(self.seen)
        save = SAVE_GRACE if saving and all(f.kind is FailureKind.ASKED for f in self.seen) else 0.0
        return awake > self._settle_until + save

    @property
    def only_consequences(self) -> bool:
        return all(f.consequence for f in self.seen)

    def cause(self, hosts: int, slept: float, printed: Printed) -> Failure:
        """Return the first cause of the failures, of which there is at least one."""
        reporters = [(f.host, f.process) for f in self.seen if _blames_peer(f, printed)]
        return first_cause(Evidence(self.seen, hosts, self.signalled, reporters, slept))


def _blames_peer(failed: Failure, printed: Printed) -> bool:
    """Return True for a process whose failure may be its own, but whose output says that it lost another process."""
    if failed.process is None or failed.kind not in (FailureKind.ABORTED, FailureKind.EXITED):
        return False
    return is_peer_loss(failed.what.encode()) or is_peer_loss(printed(failed.host, failed.process))
