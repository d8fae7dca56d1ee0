"""Find the bad hosts of a pod in the record of earlier runs, and tell the user which of them are left out, and why.

A bad host is left out where a spare replaces it or fewer hosts are enough. Otherwise the run uses it and says so: the record
is only a suspicion, and a run that is refused costs more than one that may lose a host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from podrun.runtime.contract import UserError
from podrun.runtime.wording import counted

from ..plan.spec import RunSpec
from ..pod.fold import fold
from ..pod.pod import Host, Pod
from ..rundir.host_history import HostHistory, HostKey, worst_first
from ..rundir.host_record import place_of, read_hosts
from ..rundir.runs import RunDirectory
from ..rundir.saved import host_of_checkpoints
from ..view.printable import in_one_line
from .host_assignment import assign_hosts, to_leave_out

_NAMED = 3  # bad hosts that a message describes
_LONGEST = 40  # characters of the hosts in a command that a message shows


@dataclass
class BadHosts:
    """Knowledge of a run about the bad hosts of its pod, from attempt to attempt."""

    avoided: tuple[str, ...] = ()
    """Bad hosts that the next attempt can do without, as far as is known."""
    remarks: list[str] = field(default_factory=list)
    """Lines for the user about them, for the start of the next attempt."""
    known: set[str] = field(default_factory=set)

    def look(
        self, spec: RunSpec, directory: RunDirectory, *, unfit: Collection[str] = (), is_restart: bool = False
    ) -> tuple[Host, ...] | None:
        """Choose the bad hosts that the next attempt can do without, and the remarks.

        Args:
            spec: the run.
            directory: its run directory.
            unfit: hosts that the run does without in any case.
            is_restart: whether an attempt has ended before. Then any host may be lost.

        Returns:
            The hosts of the attempt if all others can be reached; None if it is to have those of the pod.
        """
        pod = spec.pod
        lines: list[str] = []
        bad = bad_hosts(pod, lines.append)
        needed = host_of_checkpoints(spec, directory) if bad and pod.excludes_bad else None
        others = [name for name in bad if name != needed]
        self.avoided = to_leave_out(pod, spec.job, others, unfit) if pod.excludes_bad else ()
        hosts = assign_hosts(pod, spec.job, {*self.avoided}) if self.avoided else None
        if not is_restart or not bad.keys() <= self.known:
            self.remarks = [
                *lines,
                *describe_bad(pod, bad, self.avoided, () if is_restart else hosts or (), needed),
            ]
        self.known |= bad.keys()
        return hosts

    def new(self, pod: Pod) -> str | None:
        """Return a sentence about the hosts that have become bad since `look`; None if there are none."""
        bad = bad_hosts(pod, lambda _: None)
        new = {name: history for name, history in bad.items() if name not in self.known}
        return describe_new_bad(pod, new) if new else None


def bad_hosts(pod: Pod, note: Callable[[str], None]) -> dict[str, HostHistory]:
    """Return the histories of the pod's bad hosts by name, the worst first. `note`: prints a message to the user."""
    place = place_of(pod)
    if place is None:
        return {}
    try:
        histories, _ = read_hosts()
    except UserError as error:
        note(f"warning: which hosts are bad is unknown: {error}")
        return {}
    if not histories:
        return {}
    names = {HostKey(place, host.address): host.name for host in pod.all_hosts}
    return {
        names[one.key]: one for one in worst_first(histories[key] for key in names if key in histories) if one.is_bad
    }


def why_bad(history: HostHistory) -> str:
    """Return why a host is bad: `failed 3 times in its last 7 runs (lost 2, hardware)`."""
    runs = counted(len(history.recent), "run") if len(history.recent) > 1 else "run"
    return in_one_line(f"failed {len(history.failures)} times in its last {runs} ({history.kinds})")


def describe_bad(
    pod: Pod,
    bad: Mapping[str, HostHistory],
    left_out: Collection[str],
    hosts: Sequence[Host] = (),
    needed: str | None = None,
) -> list[str]:
    """Return what the user is told about the bad hosts at the start of a run, a line for each kind of treatment.

    Args:
        pod: the pod.
        bad: the histories of its bad hosts, by name.
        left_out: names of those that the run does without.
        hosts: the hosts of the attempt; empty if they are not known yet.
        needed: name of the host on whose disk alone the run's checkpoints are; None if there is none.
    """
    gone = {*left_out, *([needed] if needed and pod.excludes_bad else [])}
    without = [name for name in left_out if name in bad]
    used = [name for name in bad if name not in gone]
    lines = []
    if without:
        clear = how_to_clear([bad[name].key.address for name in without])
        lines.append(f"left out: {describe_left_out(without, bad)}{_instead(pod, hosts)}; {clear}")
    if needed is not None and needed in bad and pod.excludes_bad:
        why = "the checkpoints of this workdir are on its disk alone"
        lines.append(f"warning: {_reasons([needed], bad)}, and takes part all the same: {why}")
    if used and not pod.excludes_bad:
        lines.append(f"warning: {_reasons(used, bad)}; `podrun hosts` says why; {_remedy(pod, used)}")
    elif used:
        lacking = "the other hosts are too few; add `spares` to the pod file" if without else _lacking(pod, used)
        lines.append(f"warning: {_reasons(used, bad)}, and {_take(used)} part all the same: {lacking}")
    return lines


def how_to_clear(addresses: Sequence[str]) -> str:
    """Return the clause that says how hosts are used again: `podrun hosts clear 10.0.0.3` takes it back."""
    folded = in_one_line(fold(addresses))
    return f"`podrun hosts clear {folded if len(folded) <= _LONGEST else 'HOST...'}` takes {_them(addresses)} back"


def describe_left_out(names: Sequence[str], bad: Mapping[str, HostHistory]) -> str:
    """Return the names of bad hosts, each with the reason."""
    return _reasons(names, bad, ", which")


def _instead(pod: Pod, hosts: Sequence[Host]) -> str:
    """Return a clause about the spares that take part, and about a smaller number of hosts; empty without either."""
    usual = set(pod.hosts)
    spares = [host.name for host in hosts if host not in usual]
    instead = f"; in place: {fold(spares)}" if spares else ""
    return (
        f"{instead}; {len(hosts)} of {len(pod.hosts)} hosts take part" if 0 < len(hosts) < len(pod.hosts) else instead
    )


def describe_new_bad(pod: Pod, bad: Mapping[str, HostHistory]) -> str:
    """Return what the user is told at the end of a run in which these hosts have become bad."""
    return f"{_reasons([*bad], bad)}; `podrun hosts` says why; {_remedy(pod, [*bad])}"


def _remedy(pod: Pod, names: Sequence[str]) -> str:
    """Return the clause that says how a later run does without hosts, or why it cannot."""
    them = _them(names)
    if pod.traits.without_bad:
        return f"`{pod.traits.without_bad}` leaves {them} out of the next job"
    if pod.can_replace:
        if pod.excludes_bad:
            return f"the next run leaves {them} out if it can"
        return f"`exclude: bad` in the pod file would leave {them} out"
    if pod.platform == "tpu":
        return f"only another slice would be without {them}: recreate the slice if this goes on"
    return "the pod has no `spares`, and no `min_hosts` with which fewer would be enough"


def _lacking(pod: Pod, names: Sequence[str]) -> str:
    if pod.can_replace and not pod.traits.without_bad:
        return "the run cannot do without it; add `spares` to the pod file"
    return _remedy(pod, names)


def _reasons(names: Sequence[str], bad: Mapping[str, HostHistory], which: str = "") -> str:
    rows = [f"{name}{which} {why_bad(bad[name])}" for name in names[:_NAMED]]
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{'; '.join(rows)}{more}"


def _take(names: Sequence[str]) -> str:
    return "takes" if len(names) == 1 else "take"


def _them(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"
