"""Validate a plug-in's Listing; no field is trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from podrun.runtime.contract import UserError

from ..pod.pod import Host, Ssh
from ..pod.ranges import LIMIT, is_host
from ..pod.slices import Slice, on_hosts, parse_slice
from ..pod.traits import TRAITS
from ..yamlfile.short import short
from .base import Listing
from .fits import duplicates, misfit

_SSH = {"user": str, "port": int, "key": Path, "jump": str, "known_hosts": Path, "config": Path}
_NAMED = 3  # most mistakes reported about hosts


def listing_problems(listing: object) -> Iterator[str]:
    """Yield every reason why a listing is unusable, and what to do."""
    if not isinstance(listing, Listing):
        yield f"{short(listing)} is not a Listing; return a podrun.launcher.inventory.base.Listing"
        return
    hosts = listing.hosts
    if not isinstance(hosts, tuple) or not all(isinstance(host, Host) for host in hosts):
        yield f"hosts is {short(hosts)}; give a tuple of podrun.launcher.pod.pod.Host"
        return
    if not 1 <= len(hosts) <= LIMIT:
        yield f"hosts has {len(hosts)} entries; list 1 to {LIMIT}"
        return
    wrong = [
        f"{what} of a host is {short(value)}; give the name or IP address of one host"
        for host in hosts
        for what, value in (("name", host.name), ("address", host.address), ("internal", host.internal))
        if not (isinstance(value, str) and is_host(value)) and not (what == "internal" and value is None)
    ]
    yield from wrong[:_NAMED] or duplicates(hosts)
    yield from _shape_problems(listing)
    yield from _reach_problems(listing)


def _shape_problems(listing: Listing) -> Iterator[str]:
    slots, slice = listing.slots, listing.slice
    if slots is not None and not (isinstance(slots, int) and slots > 0):
        yield f"slots is {short(slots)}; give the number of devices on each host, or None"
    if slice is None:
        return
    if not isinstance(slice, Slice):
        yield f"slice is {short(slice)}; give what podrun.launcher.pod.slices.parse_slice returns, or None"
        return
    try:
        known = on_hosts(parse_slice(slice.name), slice.hosts) == slice
    except UserError:
        known = False
    if not known:
        yield f"slice {short(slice.name)} is not as podrun knows it; give what parse_slice returns, or None"
    elif what := misfit(slice, len(listing.hosts)):
        yield what


def _reach_problems(listing: Listing) -> Iterator[str]:
    traits = TRAITS.get(listing.transport) if isinstance(listing.transport, str) else None
    if traits is None or not traits.lists_hosts:
        fitting = " or ".join(name for name, traits in TRAITS.items() if traits.lists_hosts)
        yield f"transport is {short(listing.transport)}; give {fitting}"
    if listing.is_queued:
        yield "is_queued is only for a job that is submitted to a queue; list hosts that exist"
    if not isinstance(listing.ssh, Ssh):
        yield f"ssh is {short(listing.ssh)}; give a podrun.launcher.pod.pod.Ssh"
        return
    for name, kind in _SSH.items():
        value = getattr(listing.ssh, name)
        if value is not None and not isinstance(value, kind):
            yield f"ssh.{name} is {short(value)}; give a {kind.__name__}, or None"
    if listing.ssh.host_keys not in ("strict", "accept-new"):
        yield f"ssh.host_keys is {short(listing.ssh.host_keys)}; give strict or accept-new"
    if listing.python is not None and not (isinstance(listing.python, str) and listing.python):
        yield f"python is {short(listing.python)}; give the interpreter's path on the hosts, or None"
