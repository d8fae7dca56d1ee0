"""Compute from earlier attempts which failures of each host count, and which hosts are bad. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

RUNS = 10
"""Number of a host's last runs whose failures count."""
FAILURES = 3
"""Number of failures in these runs that make a host bad."""
DAYS = 30
"""Age of a failure above which it counts no more. So a host that is left out returns by itself."""


class HostFailureKind(StrEnum):
    """What a failure says about a host."""

    LOST = "lost"  # it stopped answering, or was restarted, while it took part in a run
    HARDWARE = "hardware"  # an error of a GPU or its memory ended a process, or a GPU cannot be used
    ECC = "ecc"  # its GPUs count uncorrected errors of their memory
    SLOW = "slow"  # the others waited for it in most of their steps


class HostKey(NamedTuple):
    """What stays the same of a host from run to run."""

    place: str
    """How its address is to be understood: the transport, with the jump host behind which it is."""
    address: str


class HostFailure(NamedTuple):
    """A failure that speaks against a host."""

    kind: str
    """A `HostFailureKind`, or one of another version."""
    what: str
    """One line: `has not answered for 21 s`."""
    time: float = 0.0
    """Seconds since 1970."""
    run: str = ""


@dataclass(frozen=True)
class AttemptOfHosts:
    """An attempt of a run: the hosts that took part, and the failures that speak against some of them."""

    time: float
    run: str
    place: str
    hosts: Mapping[str, str]
    """The name of each host, by address."""
    failed: Mapping[str, HostFailure] = field(default_factory=dict)
    """By address."""


class ClearedHosts(NamedTuple):
    """The user has forgiven these hosts."""

    hosts: tuple[HostKey, ...]


HostEntry: TypeAlias = AttemptOfHosts | ClearedHosts


@dataclass
class HostHistory:
    """What is known of one host."""

    key: HostKey
    name: str
    """The name that it had in its last run."""
    runs: int = 0
    """Number of its runs in the record: those since its first failure."""
    last_run: float = 0.0
    """Time at which it last took part in a run."""
    recent: dict[str, list[HostFailure]] = field(default_factory=dict)
    """Its last runs, the oldest first, each with the failures in it that speak against the host."""
    counts: set[str] = field(default_factory=set)
    """Descriptions of its memory errors so far, which name their number. The same number, read again, counts no more."""

    @property
    def failures(self) -> list[HostFailure]:
        """Return the failures that count, the oldest first."""
        return [failure for failures in self.recent.values() for failure in failures]

    @property
    def is_bad(self) -> bool:
        return len(self.failures) >= FAILURES

    @property
    def kinds(self) -> str:
        """Return the kinds of its failures, the most frequent first: `lost 2, hardware`."""
        counts = Counter(failure.kind for failure in self.failures).most_common()
        return ", ".join(f"{kind} {count}" if count > 1 else kind for kind, count in counts)

    def add(self, attempt: AttemptOfHosts, now: float) -> None:
        address = self.key.address
        self.name, self.last_run = attempt.hosts[address], attempt.time
        if attempt.run not in self.recent:
            self.runs += 1
            self.recent[attempt.run] = []
            if len(self.recent) > RUNS:
                del self.recent[next(iter(self.recent))]
        failure = attempt.failed.get(address)
        if failure is None or failure.what in self.counts:
            return
        if failure.kind == HostFailureKind.ECC:
            self.counts.add(failure.what)
        if 0 <= now - attempt.time <= DAYS * 24 * 3600:
            self.recent[attempt.run].append(failure)

    def clear(self) -> None:
        self.recent = {run: [] for run in self.recent}


def host_histories(entries: Iterable[HostEntry], now: float) -> dict[HostKey, HostHistory]:
    """Return the history of each host. Failures that are old at the time `now`, or later than it, do not count.

    The order of the entries counts otherwise, not their times: a clock may go backwards.
    """
    histories: dict[HostKey, HostHistory] = {}
    for entry in entries:
        if isinstance(entry, ClearedHosts):
            for key in entry.hosts:
                if key in histories:
                    histories[key].clear()
            continue
        for address, name in entry.hosts.items():
            key = HostKey(entry.place, address)
            if key not in histories:
                histories[key] = HostHistory(key, name)
            histories[key].add(entry, now)
    return histories


def worst_first(histories: Iterable[HostHistory]) -> Iterator[HostHistory]:
    """Yield the hosts with the most failures first; among equal ones, that with the latest failure."""
    return iter(sorted(histories, key=lambda one: (-len(one.failures), -_last(one), one.name)))


def _last(history: HostHistory) -> float:
    return max((failure.time for failure in history.failures), default=0.0)
