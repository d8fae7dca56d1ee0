"""Check that hosts are unique and that their number fits the slice; suggest slices that fit. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from podrun.runtime.wording import counted

from ..pod.pod import Host
from ..pod.slices import Slice, on_hosts, tpu_slices

_SHOWN = 4  # maximum number of suggested slices


def misfit(slice: Slice, hosts: int) -> str | None:
    """Return a message if the slice does not have this number of hosts; None if it does."""
    if hosts == on_hosts(slice, hosts).hosts:
        return None
    has, other = counted(slice.hosts, "host"), on_hosts(slice, 2 * slice.slices)
    if other != slice:
        has += f" of {slice.devices_per_host} chips, or {counted(other.hosts, 'host')} of {other.devices_per_host}"
    return f"{counted(hosts, 'host')}, but {slice.name} has {has}; {_suggestion(slice, hosts)}"


def _suggestion(slice: Slice, hosts: int) -> str:
    give = f"give {counted(slice.hosts, 'host')}"
    if slice.slices > 1:
        return f"{give}, those of each of its {slice.slices} slices one after the other, or another number of slices"
    if slice.kind != "tpu":
        return f"{give}, or the slice {slice.kind}-{hosts}x{slice.devices_per_host}"
    generation = slice.name.rpartition("-")[0]
    same = [s for s in tpu_slices().values() if s.name.rpartition("-")[0] == generation]
    fitting = [s.name for s in same if on_hosts(s, hosts).hosts == hosts]
    if fitting:
        return f"{give}, or a slice that fits: {', '.join(fitting[:_SHOWN])}"
    near = sorted(same, key=lambda s: abs(s.hosts - hosts))[:2]
    others = ", ".join(f"{s.name} has {s.hosts}" for s in sorted(near, key=lambda s: s.hosts))
    return f"{give}; no {generation} slice has {counted(hosts, 'host')} ({others})"


def duplicates(hosts: Iterable[Host]) -> Iterator[str]:
    """Yield a message for each name and address that two hosts share."""
    for what in ("name", "address", "internal"):
        seen: dict[str, Host] = {}
        for host in hosts:
            value = getattr(host, what)
            if value is None or (what == "address" and value == host.name):
                continue  # already reported for the name
            first = seen.get(value.lower())
            seen.setdefault(value.lower(), host)
            if first is not None:
                who = "two hosts have" if what == "name" else f"{first.name} and {host.name} have"
                yield f"{who} the {what} {value}; each host has its own"
