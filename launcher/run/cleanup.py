"""End processes that attempts left on hosts: before the next attempt, which writes to the same workdir, and after the run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from typing import NamedTuple

from ..attempt.observers import Observer, Observers
from ..attempt.outcome import Outcome
from ..attempt.supervisor import Supervisor
from ..attempt.view import View
from ..plan.plan import NETWORK_LEASE, LaunchPlan, make_plan
from ..plan.spec import RunSpec
from ..pod.pod import Host
from ..preflight.base import name_hosts
from ..rundir.adoption import Adoption
from ..rundir.events import EndEvent
from ..rundir.logs import Logs
from ..rundir.runs import Recorder, RunDirectory
from ..transport.base import Transport, load_transport
from ..view.console import NoConsole
from .wait_for_hosts import sleep

_MARGIN = 2.0  # seconds for an agent to kill its workers after its lease and their grace period


class _Stray(NamedTuple):
    """Processes that an attempt may have left on a host."""

    plan: LaunchPlan
    """Plan of the attempt."""
    row: str
    """`host: reason`."""
    adoption: Adoption
    """Records of the attempt."""
    until: float
    """The time.monotonic() at which the host's agent, whose lease has then expired, has ended these processes."""


class StrayProcesses:
    """Processes that earlier attempts may have left on unreachable hosts."""

    def __init__(self, directory: RunDirectory, transport: Transport, logs: Logs, note: Callable[[str], None]) -> None:
        self._directory = directory
        self._transport = transport
        self._logs = logs
        self._note = note
        self._strays: dict[str, _Stray] = {}
        """Strays by host."""

    @property
    def unconfirmed(self) -> list[str]:
        """Return `host: reason` for each host that may still have processes of an earlier attempt."""
        return [stray.row for stray in self._strays.values() if time.monotonic() < stray.until]

    def clear(
        self, plan: LaunchPlan, outcome: Outcome, hosts: Sequence[Host], stopped: Callable[[], bool], since: float
    ) -> bool:
        """End what an attempt has left behind on `hosts`, so that the next attempt can start there.

        Moves the entries of `outcome.left_behind` into this object, together with the attempt's plan, because the next
        attempt may have other hosts. Does not wait for an unreachable host that takes no part in the next attempt: its
        agent ends all processes when its lease expires.

        Args:
            plan: the plan of the attempt that has ended.
            outcome: its outcome.
            hosts: the hosts of the next attempt.
            stopped: returns True once the user has stopped the run.
            since: the `time.monotonic()` at which the attempt ended.

        Returns:
            True if nothing of the attempt is left on `hosts`.
        """
        names = {host.name for host in hosts}
        until = since + plan.lease + plan.launch.stop_grace + _MARGIN
        if outcome.left_behind:
            adoption = self._directory.adoption(plan)  # read now, because the next start begins new records
            self._strays |= {_host(row): _Stray(plan, row, adoption, until) for row in outcome.left_behind}
            outcome.left_behind = []
        for host in names & self._strays.keys():
            stray = self._strays.pop(host)
            for row in self._end(stray):
                self._strays[host] = stray._replace(row=row, until=inf)
        if names & self._strays.keys():
            self._note("no restart: processes of this attempt are left, and would run beside the next one")
            return False
        away = [host for host, stray in self._strays.items() if stray.plan is plan]
        if away and plan.lease <= NETWORK_LEASE:
            pause = until - time.monotonic()
            if pause > 1:
                self._note(f"{name_hosts(away)} may still end its processes: waiting for {pause:.0f} s")
            sleep(pause, stopped)
        return True

    def _end(self, stray: _Stray) -> list[str]:
        return end_rest(stray.plan, stray.adoption, [stray.row], self._transport, self._logs, Observers())


def end_strays(spec: RunSpec, directory: RunDirectory, end: EndEvent) -> list[str]:
    """End processes of an ended run on hosts that were unreachable at its end, and record a new end event.

    Returns `host: reason` for each host that may still have processes. Raises UserError if a podrun supervises the run.
    """
    with ExitStack() as stack:
        stack.enter_context(directory.supervise())
        logs = stack.enter_context(Logs(directory.logs))
        recorder = Recorder(directory.events)
        stack.callback(recorder.close)
        transport = load_transport(spec.pod)
        stack.callback(transport.close)
        view = View(NoConsole(), recorder)
        stack.callback(view.close)
        hosts = directory.hosts(spec.pod)
        names = {_host(row) for row in end["left_behind"]}
        earlier = [host for host in spec.pod.all_hosts if host not in hosts and host.name in names]
        left = []
        for group in (hosts, earlier):  # processes of earlier attempts are found by the run's id
            rows = [row for row in end["left_behind"] if _host(row) in _names(group)]
            if rows:
                plan = make_plan(spec, directory.attempt() or 0, hosts=group)
                left += end_rest(plan, directory.adoption(plan), rows, transport, logs, view)
        recorder.event({**end, "time": time.time(), "left_behind": left})
        return left


def end_rest(
    plan: LaunchPlan, adoption: Adoption, left: Sequence[str], transport: Transport, logs: Logs, observer: Observer
) -> list[str]:
    """End the processes that an attempt left on hosts.

    Args:
        plan: the plan of the attempt.
        adoption: records of the attempt.
        left: `host: reason` for each host that may have processes.
        transport: transport of the pod.
        logs: logs of the run.
        observer: gets the events.

    Returns:
        `host: reason` for each host that may still have processes.
    """
    hosts = {_host(row) for row in left}
    elsewhere = [row for row in left if _host(row) not in {h.host.name for h in plan.hosts}]
    plan = replace(plan, hosts=tuple(h for h in plan.hosts if h.host.name in hosts))
    if not plan.hosts:
        return elsewhere
    supervisor = Supervisor(plan, transport, logs, observer, adoption)
    supervisor.interrupt(signal.SIGTERM)
    return [*elsewhere, *supervisor.run().left_behind]


def _host(row: str) -> str:
    return row.partition(": ")[0]


def _names(hosts: Collection[Host]) -> set[str]:
    return {host.name for host in hosts}
