"""Before a restart, wait until every host is reachable, so that a rebooting host does not use up the restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from podrun.runtime.contract import ExitCode

from ..attempt.cause import Failure
from ..attempt.suspend_clock import ASLEEP, SuspendClock
from ..pod.errors import HostError
from ..pod.fan_out import fan_out
from ..pod.in_thread import InThread
from ..pod.pod import Host, Pod
from ..preflight.base import name_hosts
from ..remote.conversation import deadline, drain
from ..transport.base import Transport
from .host_assignment import Job, assign_hosts

LIMIT = 600.0  # seconds for a host to come back; documented in docs/faults.md
SHORT_LIMIT = 20.0  # seconds, if the run can continue without the host
ANSWER = 30.0  # seconds for a login shell to run one command; it may wait for a file system
_SILENCE = 3.0  # seconds without an answer after which the user is told which hosts are awaited
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0  # seconds between two tries


class HostWait:
    """Waits for the hosts of a pod."""

    def __init__(
        self,
        pod: Pod,
        job: Job,
        transport: Transport,
        note: Callable[[str], None],
        limit: float = LIMIT,
        unfit: Collection[str] = (),
        what: str = "restart",
        avoided: Collection[str] = (),
    ) -> None:
        """Begin with all hosts unknown.

        Args:
            pod: the pod.
            job: the job, which may need a minimum number of hosts.
            transport: transport of the pod.
            note: prints a message to the user.
            limit: seconds to wait.
            unfit: names of hosts that answer but could not be prepared; the next attempt does not use them.
            what: what waits for the hosts, for messages.
            avoided: names of bad hosts, which the next attempt uses only if it cannot do without them.
        """
        self._pod = pod
        self._job = job
        self._transport = transport
        self._note = note
        self._limit = limit
        self._unfit = frozenset(unfit)
        self._avoided = frozenset(avoided)
        self._what = what
        self._clock = SuspendClock(ASLEEP)
        self._told: set[str] = set()
        """Hosts about which the user was told that podrun waits for them."""
        self.waited = False
        """True if a host was unreachable or slow. What was prepared on it may be lost."""
        self.hosts = pod.hosts
        """Hosts of the next attempt."""

    def wait(self, stopped: Callable[[], bool]) -> Failure | None:
        """Wait until all hosts answer; after a while, until enough hosts answer for the pod to continue.

        Returns None when the wait has ended, or the user has `stopped` it; after the limit, the failure of a missing
        host.
        """
        start = self._clock.now()
        pause = FIRST_PAUSE
        while (away := self.away(self._fit(self._pod.hosts), stopped)) is not None:
            if back := sorted(self._told - away.keys()):
                self._note(f"{name_hosts(back)}: back")
            self._told &= away.keys()
            if not away and not self._unfit and not self._avoided:
                return None
            passed = self._clock.now() - start
            if not away or (self._pod.can_replace and passed > min(SHORT_LIMIT, self._limit)):
                spares = self.away(self._fit(self._pod.spares), stopped)
                if spares is None:
                    return None
                gone = away.keys() | spares.keys() | self._unfit
                if hosts := assign_hosts(self._pod, self._job, gone | self._avoided):
                    self.hosts = hosts
                    return None
                if self._avoided:
                    self._note(f"{name_hosts(sorted(self._avoided))}: needed after all, so no longer left out")
                    self._avoided = frozenset()
                    continue
                away = away or spares
                if not away:
                    what = "could not be prepared, and too few other hosts are left"
                    return Failure(min(self._unfit), None, what, ExitCode.UNAVAILABLE)
            if passed > self._limit:
                host, reason = next(iter(away.items()))
                return Failure(
                    host, None, f"did not come back within {minutes(self._limit)}: {reason}", ExitCode.UNAVAILABLE
                )
            self._tell(away)
            sleep(pause, partial(self._is_over, stopped))
            pause = min(2 * pause, LONGEST_PAUSE)
        return None

    def _is_over(self, stopped: Callable[[], bool]) -> bool:
        """Return True if the user has stopped the wait.

        Called continuously, so that the clock notices a suspended launcher.
        """
        self._clock.now()
        return stopped()

    def _fit(self, hosts: Sequence[Host]) -> list[Host]:
        return [host for host in hosts if host.name not in self._unfit | self._avoided]

    def _tell(self, away: Mapping[str, str]) -> None:
        self.waited = True
        if away.keys() - self._told:
            self._told |= away.keys()
            limit = f"{SHORT_LIMIT:g} s if it can go on without" if self._pod.can_replace else minutes(self._limit)
            reason = next(iter(away.values()))
            self._note(f"the {self._what} waits for {name_hosts(away)} ({reason}), up to {limit}; Ctrl-C ends the run")

    def away(self, hosts: Sequence[Host], stopped: Callable[[], bool], quiet: bool = False) -> dict[str, str] | None:
        """Return the unreachable hosts, each with the reason; None as soon as `stopped()` is true.

        `quiet`: print nothing about slow hosts.
        """
        silent: dict[str, str] = {}

        def ask(host: Host) -> None:
            silent[host.name] = "no answer yet"
            try:
                self._try(host)
            finally:
                silent.pop(host.name)

        asking = InThread(lambda: fan_out(ask, hosts), "wait-for-hosts")
        quiet_until = time.monotonic() + _SILENCE
        while not asking.wait(0.1):
            if self._is_over(stopped):
                return None
            if not quiet and time.monotonic() > quiet_until and (waiting := silent.copy()):
                self._tell(waiting)
        if stopped():
            return None
        return {
            host.name: answer.reason if isinstance(answer, HostError) else str(answer)
            for host, answer in zip(hosts, asking.result(), strict=True)
            if answer is not None
        }

    def _try(self, host: Host) -> None:
        channel = self._transport.open(host, ["true"])
        try:
            with deadline(ANSWER, channel.close) as late:
                drain(channel)
            if late.is_set():
                raise HostError(host.name, f"did not answer within {ANSWER:g} s")
            if channel.exit_code() is None:
                raise HostError(host.name, channel.why_not_started() or "the connection ended")
        finally:
            channel.close()


def sleep(seconds: float, stopped: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped():
        time.sleep(0.1)


def minutes(seconds: float) -> str:
    return f"{seconds / 60:g} min"
