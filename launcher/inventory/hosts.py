"""List hosts by name: `--hosts`, and the key `hosts` of a pod file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from podrun.runtime.contract import UserError

from ..pod.pod import Host
from ..pod.ranges import LIMIT, count, expand, split_hosts
from ..yamlfile.short import short
from .base import INVENTORIES, LOCAL, Listing

if TYPE_CHECKING:
    from .pod_schema import HostEntry

NOT_ALONE = f"{LOCAL} is this machine, which trains alone; name it by an address that the other hosts reach"


def from_option(text: str) -> Listing:
    """Return the hosts of a comma-separated text of names, addresses and ranges; or this machine for `local`.

    Raises UserError.
    """
    names: list[str] = []
    wrong = []
    entries = split_hosts(text)
    if sum(map(count, entries)) > LIMIT:  # before building the names
        raise UserError(
            f"--hosts: {short(text)} stands for more than {LIMIT} hosts, which is the limit; shorten the ranges"
        )
    for entry in entries:
        try:
            names += expand(entry)
        except ValueError as error:
            wrong.append(f"--hosts: {short(entry)} {error}")
    if not names and not wrong:
        wrong.append("--hosts: is empty; name the hosts, for example --hosts tpu-[0-3]")
    if LOCAL in names and len(names) > 1:
        wrong.append(f"--hosts: {NOT_ALONE}")
    if wrong:
        raise UserError("\n".join(wrong[:5]))
    if names == [LOCAL]:
        return _this_machine()
    return Listing(tuple(Host(name, name) for name in names))


def from_key(entries: Iterable[HostEntry]) -> Listing:
    """Return the hosts of the entries of a pod file; or this machine for `hosts: [local]`."""
    hosts = tuple(host for entry in entries for host in entry.hosts())
    return _this_machine() if hosts == (Host(LOCAL, LOCAL),) else Listing(hosts)


def _this_machine() -> Listing:
    return INVENTORIES[LOCAL].from_option(True)
