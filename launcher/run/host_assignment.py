"""Choose the hosts of a run's next attempt if some hosts of the pod are unreachable. PURE."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..plan.program import Program
from ..pod.pod import Host, Pod
from ..preflight.base import name_hosts

if TYPE_CHECKING:
    from podrun.runtime.config import Config

Job: TypeAlias = "Config | Program"


def assign_hosts(pod: Pod, job: Job, away: Collection[str]) -> tuple[Host, ...] | None:
    """Return the hosts of the next attempt in the order of their process ids; None if too few hosts are reachable.

    Each reachable host keeps its place. A spare replaces an unreachable host; without spares the later hosts move up.
    If the job cannot run on that number of hosts, some are left out. `away`: names of the hosts that may not be used.
    """
    spares = [host for host in pod.spares if host.name not in away]
    hosts: list[Host] = []
    for host in pod.hosts:
        if host.name not in away:
            hosts.append(host)
        elif spares:
            hosts.append(spares.pop(0))
    least = len(pod.hosts) if pod.min_hosts is None else pod.min_hosts
    fitting = (count for count in range(len(hosts), least - 1, -1) if not _misfit(pod, job, count))
    count = next(fitting, None)
    return None if count is None else tuple(hosts[:count])


def to_leave_out(pod: Pod, job: Job, bad: Sequence[str], unfit: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of as many bad hosts as the run can do without if all others are reachable.

    Args:
        pod: the pod.
        job: the job, which may need a minimum number of hosts.
        bad: names of the bad hosts, the worst first.
        unfit: names of hosts that may not be used at all.
    """
    usable = [name for name in bad if name not in unfit]
    many = bisect_right(range(1, len(usable) + 1), False, key=lambda n: _lacks(pod, job, {*usable[:n], *unfit}))
    return tuple(usable[:many])


def _lacks(pod: Pod, job: Job, away: Collection[str]) -> bool:
    return assign_hosts(pod, job, away) is None


def has_more_hosts(pod: Pod, job: Job, present: Collection[str], back: Collection[str]) -> bool:
    """Return True if an attempt has more hosts than the `present` ones once other hosts are back.

    A host that is left out because the job does not fit all that answer makes no difference when it answers.
    """
    here = {*present, *back}
    hosts = assign_hosts(pod, job, {host.name for host in pod.all_hosts if host.name not in here})
    return hosts is not None and len(hosts) > len(present)


def can_do_without(pod: Pod, job: Job, failed: Collection[str], unfit: Collection[str]) -> bool:
    """Return True if the run can start without the hosts whose preparation has `failed` and without the `unfit` ones."""
    names = {host.name for host in pod.all_hosts}
    return bool(failed) and names.issuperset(failed) and assign_hosts(pod, job, {*failed, *unfit}) is not None


def why_not_fewer(pod: Pod, job: Job) -> str | None:
    """Return why the job needs all hosts although the pod allows fewer; None if it does not, or the pod forbids it."""
    if pod.min_hosts is None:
        return None
    reasons = [_misfit(pod, job, count) for count in range(pod.min_hosts, len(pod.hosts))]
    return reasons[-1] if reasons and all(reasons) else None


def _misfit(pod: Pod, job: Job, hosts: int) -> str | None:
    """Return why the job cannot run on this number of hosts; None if it can, or if only a user program knows."""
    if hosts == len(pod.hosts) or isinstance(job, Program):
        return None
    from podrun.runtime.config import shrinking_problem

    return shrinking_problem(job, hosts * pod.slice.devices_per_host)


def describe_change(pod: Pod, before: Sequence[Host], after: Sequence[Host]) -> str | None:
    """Return a message about the change of hosts; None if they are the same as before."""
    if tuple(before) == tuple(after):
        return None
    before_all, after_all = set(before), set(after)
    gone = [host.name for host in before if host not in after_all]
    new = [host.name for host in after if host not in before_all]
    parts = []
    if gone:
        parts.append(f"without {name_hosts(gone)}")
    if new:
        parts.append(f"with {name_hosts(new)}")
    return f"the run goes on {' and '.join(parts)}: {len(after)} of {len(pod.hosts)} hosts"
