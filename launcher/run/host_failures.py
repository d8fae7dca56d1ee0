"""Decide which failures of an attempt speak against hosts, and record them.

Most failures do not: an exception of the program, a lack of memory, a mistake, a preemption, a host that could not be
reached or prepared. If several hosts fail at once, they have a common reason, such as the network, and none is blamed.
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from podrun.runtime.contract import UserError
from podrun.runtime.events import EventKind

from ..attempt.cause import LAUNCHER, Failure, FailureKind
from ..attempt.outcome import Outcome
from ..plan.plan import LaunchPlan
from ..plan.spec import RunSpec
from ..rundir.events import Event, LateEvent
from ..rundir.host_history import AttemptOfHosts, HostFailure, HostFailureKind
from ..rundir.host_record import note_attempt, place_of

SLOW_SECONDS, SLOW_SHARE = 60.0, 0.5
"""A host is slow if the others waited for it for so long, and for this share of the time that they trained."""
_OF_HARDWARE = re.compile(
    # errors of the CUDA driver API (cuda.h) and texts of the NVIDIA driver that name the GPU, its memory or its links
    r"CUDA_ERROR_(ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|HARDWARE_STACK_ERROR|CONTAINED)"
    r"|uncorrectable (ECC|NVLink) error(?!s?\W*0\b)|GPU has fallen off the bus|GPU is lost|NVRM: Xid",
    re.IGNORECASE,
)
_CRASHES = frozenset(
    128 + number for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV, signal.SIGILL, signal.SIGFPE)
)
"""Codes of processes that crashed. Other processes may have printed anything, such as the result of a health check."""
_SEVERAL = 3  # hosts that are lost in one attempt, as by a switch

Printed = Callable[[str, int], str]
"""Called with a host and a process; returns the end of what the process printed."""


def failures_against(failures: Sequence[Failure], printed: Printed, started: Collection[str]) -> dict[str, HostFailure]:
    """Return the failures of an attempt that speak against a host, by its name; the first one of each host. PURE.

    `started`: names of the hosts whose processes had started. Nobody knows why another could not be reached.
    """
    against: dict[str, HostFailure] = {}
    for failed in failures:
        if failed.host in started and failed.host not in against and (failure := _against(failed, printed)):
            against[failed.host] = failure
    return against


def _against(failed: Failure, printed: Printed) -> HostFailure | None:
    if failed.process is None:
        is_lost = failed.kind is FailureKind.SILENT or failed.rebooted
        return HostFailure(HostFailureKind.LOST, failed.what.partition("\n")[0]) if is_lost else None
    if failed.kind is FailureKind.WRONG:
        return HostFailure(HostFailureKind.HARDWARE, failed.what)
    if failed.consequence and failed.kind is not FailureKind.ABORTED:
        return None
    has_crashed = failed.code in _CRASHES and not failed.details
    text = f"{failed.what}\n{printed(failed.host, failed.process) if has_crashed else failed.details}"
    line = next((line for line in text.splitlines() if _OF_HARDWARE.search(line)), None)
    return None if line is None else HostFailure(HostFailureKind.HARDWARE, line.strip())


def without_common(against: Mapping[str, HostFailure], hosts: int) -> dict[str, HostFailure]:
    """Return the failures whose kind did not hit more than half of the hosts; losses only if few hosts were lost. PURE.

    A pod of one host has no others to compare it with: it may be lost because the network of the launcher is.
    """
    counts = Counter(failure.kind for failure in against.values())
    common = {kind for kind, count in counts.items() if 2 * count > hosts > 1}
    if hosts == 1 or counts[HostFailureKind.LOST] >= _SEVERAL:
        common.add(HostFailureKind.LOST)
    return {host: failure for host, failure in against.items() if failure.kind not in common}


def record_wrong_results(spec: RunSpec, wrong: Collection[str], what: str) -> str | None:
    """Record hosts that a replay has found to compute wrongly, as failures of hardware; return a sentence about it.

    Return None if nothing is recorded: the fault was injected, the hosts are this machine, or more than half of them are
    named, which says nothing about each.

    Args:
        spec: the replay.
        wrong: names of the hosts.
        what: the verdict, one line.
    """
    place = place_of(spec.pod)
    if place is None or spec.inject:
        return None
    addresses = {host.name: host.address for host in spec.pod.hosts}
    failed = {name: HostFailure(HostFailureKind.HARDWARE, what) for name in wrong if name in addresses}
    failed = without_common(failed, len(addresses))
    if not failed:
        return None
    attempt = AttemptOfHosts(
        time.time(),
        spec.run_id,
        place,
        {addresses[name]: name for name in failed},
        {addresses[name]: failure for name, failure in failed.items()},
    )
    try:
        note_attempt(attempt)
    except (OSError, UserError) as error:
        return _not_recorded(error)
    return "podrun hosts counts it as a failure of hardware"


def _not_recorded(error: OSError | UserError) -> str:
    why = getattr(error, "strerror", None) or str(error)
    return f"the hosts of this run are not in the record that `podrun hosts` shows: {why}"


class LateTime:
    """For how long the others waited for each host in an attempt, from its events.

    The process with number 0 does not count: it saves and reports for all, so its work, and not its host, may be slow.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._began: float | None = None
        self._last = 0.0
        self._late: LateEvent | None = None

    def event(self, event: Event) -> None:
        self._last = max(self._last, event["time"])
        if event["event"] == EventKind.STEP and self._began is None:
            self._began = event["time"]
        elif event["event"] == EventKind.LATE:
            self._close(event["time"])
            self._late = event if event["behind"] and event["process"] else None

    def slow(self) -> dict[str, HostFailure]:
        """Return the hosts that were late for most of the time since the first step. Call it at the end of the attempt."""
        self._close(self._last)
        trained = self._last - self._began if self._began is not None else 0.0
        return {
            host: HostFailure(
                HostFailureKind.SLOW, f"the others waited for it for {seconds:.0f} s of {trained:.0f} s of training"
            )
            for host, seconds in self._seconds.items()
            if seconds >= max(SLOW_SECONDS, SLOW_SHARE * trained)
        }

    def _close(self, now: float) -> None:
        if self._late is not None:
            host, seconds = self._late["host"], max(0.0, now - self._late["since"])
            self._seconds[host] = self._seconds.get(host, 0.0) + seconds
            self._late = None


class HostFailures:
    """An observer of the attempts of a run, which records the hosts of each attempt and what speaks against them."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """Begin with the first attempt. `note`: prints a message to the user."""
        self._note = note
        self._late = LateTime()
        self._suspects: dict[str, HostFailure] = {}
        self._started: set[str] = set()
        self._is_told = False
        self.has_recorded = False
        """True if an attempt of this run has changed the record."""

    def event(self, event: Event) -> None:
        if event["event"] == EventKind.START:
            self._late, self._suspects, self._started = LateTime(), {}, set()
        elif event["event"] == EventKind.HOST and event["phase"] == "started":
            self._started.add(event["host"])
        self._late.event(event)

    def suspect(self, host: str, kind: str, what: str) -> None:
        """Note what the facts of a host say against it. Called while the hosts of an attempt are prepared."""
        self._suspects.setdefault(host, HostFailure(kind, what))

    def record(self, plan: LaunchPlan, outcome: Outcome, ended: float, printed: Printed) -> None:
        """Record an attempt that has ended. Faults that the user has injected speak against no host."""
        place = place_of(plan.run.pod)
        if place is None or plan.run.inject:
            return
        hosts = {host.host.name: host.host.address for host in plan.hosts}
        failed: dict[str, HostFailure] = {}
        if outcome.cause is None or outcome.cause.host != LAUNCHER:
            failures = [*([outcome.cause] if outcome.cause else []), *outcome.failures]
            failed = {
                **({} if plan.is_program else self._late.slow()),  # a program may give its processes unequal work
                **self._suspects,
                **({} if outcome.unprepared else failures_against(failures, printed, self._started)),
            }
            failed = without_common({name: one for name, one in failed.items() if name in hosts}, len(hosts))
        if outcome.unprepared:  # the other hosts have shown nothing
            hosts = {name: hosts[name] for name in failed}
        if not hosts:
            return
        attempt = AttemptOfHosts(
            ended,
            plan.run.run_id,
            place,
            {address: name for name, address in hosts.items()},
            {hosts[name]: failure for name, failure in failed.items()},
        )
        try:
            self.has_recorded |= note_attempt(attempt)
        except (OSError, UserError) as error:
            if not self._is_told:
                self._note(_not_recorded(error))
                self._is_told = True
