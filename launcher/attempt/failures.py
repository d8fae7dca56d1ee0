"""PURE: collect the failures of one attempt, and decide when they are enough."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from .cause import Evidence, Failure, FailureKind, first_cause, is_peer_loss
from .messages import Moment

SETTLE = 2.0  # seconds to wait for the cause when only consequences have been seen
SAVE_GRACE = 60.0  # seconds for a save that has begun when a stop is asked for
Printed = Callable[[str, int], bytes]
"""Called with a host and a process number; returns the end of that process's output."""


@dataclass
class _Entry:
    """A failure, which is replaced if it turns out that it came before the stop."""

    failure: Failure


class Failures:
    """Collect failures; `cause` returns the first cause."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._times: list[float] = []  # at which they happened
        self.signalled: list[tuple[str, int | None]] = []
        """Processes that have reported a SIGTERM."""
        self._named: set[str] = set()  # hosts of which a failure of their own, or of their agent, is known
        self._late: dict[tuple[str, int | None], list[_Entry]] = {}  # failures after the stop, by process
        self._unread: list[Failure] = []  # failures that are not known yet to be consequences
        self._own = 0  # number of failures that are not consequences
        self._unasked = 0  # number of failures that are not preemptions
        self._settle_until = 0.0
        self.stopping = False
        """Processes were asked to stop."""
        self._user_stops = False

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def seen(self) -> list[Failure]:
        """Return the failures in the order in which they happened, as far as that is known."""
        return [entry.failure for entry in self._entries]

    def add(self, failed: Failure, now: Moment, since: float | None = None) -> None:
        """Add a failure. It is late if the process had been asked to stop before; `exited` may correct that.

        `since`: the time.monotonic() at which it happened, if that was noticed only later.
        """
        late = self.stopping and (self._user_stops or failed.process is not None)
        if not self._entries:
            self._settle_until = now.awake + SETTLE
        happened = now.monotonic if since is None else since
        position = bisect_right(self._times, happened)
        failed = failed._replace(late=failed.late or late)
        self._times.insert(position, happened)
        entry = _Entry(failed)
        self._entries.insert(position, entry)
        self._unread.append(failed)
        self._own += not failed.consequence
        self._unasked += failed.kind is not FailureKind.ASKED
        if failed.process is None:
            self._named.add(failed.host)
        if failed.late:
            self._late.setdefault((failed.host, failed.process), []).append(entry)

    def names(self, host: str) -> bool:
        """Return True if a failure of the host itself or of its agent is known."""
        return host in self._named

    def stop(self, user: bool) -> None:
        """Record that all processes are asked to stop from now on, by the `user` or because of a failure."""
        self.stopping, self._user_stops = True, user

    def exited(self, host: str, process: int, asked: bool) -> None:
        """Record that a process has ended, and whether it had been `asked` to stop before.

        If it had not, its failure counts as one before the stop, even if the report arrived later over a new
        connection.
        """
        if asked or self._user_stops:
            return
        for entry in self._late.pop((host, process), ()):
            entry.failure = entry.failure._replace(late=False)
            self._unread.append(entry.failure)
            self._own += not entry.failure.consequence

    def decided(self, awake: float, saving: bool, printed: Printed) -> bool:
        """Return True if the first cause is certain, or no further failure is expected.

        Args:
            awake: the time now, on a clock that does not count suspends of the launcher.
            saving: processes are saving; those that were preempted may finish first.
            printed: returns the end of a process's output.
        """
        while self._unread:  # each output is read once: of ten thousand processes, every one may report a lost peer
            if not (self._unread[-1].consequence or _blames_peer(self._unread[-1], printed)):
                return True
            self._unread.pop()
        save = SAVE_GRACE if saving and self.only_preemptions else 0.0
        return bool(self._entries) and awake > self._settle_until + save

    @property
    def only_consequences(self) -> bool:
        return not self._own

    @property
    def only_preemptions(self) -> bool:
        """Return True if every failure is that of a process or machine that was asked to stop from outside."""
        return not self._unasked

    def cause(self, hosts: int, slept: float, printed: Printed) -> Failure:
        """Return the first cause of the failures, of which there is at least one."""
        silent = {f.host for f in self.seen if f.kind is FailureKind.SILENT}
        # Where another host is silent, a process lost its peer whatever it has printed.
        asked = [f for f in self.seen if silent <= {f.host}]
        reporters = {(f.host, f.process) for f in asked if _blames_peer(f, printed)}
        return first_cause(Evidence(self.seen, hosts, self.signalled, reporters, slept))


def _blames_peer(failed: Failure, printed: Printed) -> bool:
    """Return True for a process whose failure may be its own, but whose output says that it lost another process."""
    if failed.process is None or failed.kind not in (FailureKind.ABORTED, FailureKind.EXITED):
        return False
    return is_peer_loss(failed.what.encode()) or is_peer_loss(printed(failed.host, failed.process))
