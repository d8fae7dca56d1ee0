"""Ask a source of hosts by its name: `--hosts-from metadata`, `gke`, or that of a plug-in."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from podrun.runtime.contract import UserError

from ..pod.lazy import load
from ..yamlfile.short import short
from .base import Listing
from .plugins import GROUP, list_by_plugin, plugin_names

SOURCES: Mapping[str, str] = MappingProxyType(
    {"metadata": "engines.tpu.metadata:list_hosts", "gke": "engines.kubernetes.gke:list_hosts"}
)
"""Maps the names of podrun's own sources to what lists their hosts. A plug-in cannot take the place of one."""


def from_option(text: str) -> Listing:
    """Return the hosts of a source. What follows a colon is for a plug-in: `mine:pod-a`.

    Raises UserError, and UnavailableError if a service cannot be asked now.
    """
    name, colon, argument = text.partition(":")
    if name in SOURCES:
        if colon:
            raise UserError(f"--hosts-from {name}: takes nothing after its name; leave {short(f':{argument}')} out")
        return cast(Listing, load(SOURCES[name])())
    listing = list_by_plugin(name, argument, f"--hosts-from {name}")
    if listing is None:
        known = names()
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise UserError(
            f"--hosts-from: there is no source of hosts {short(name)}{meant}\n"
            f"known here are {', '.join(known)}; a package brings others by entry points of the group {GROUP}"
        )
    return listing


def names() -> list[str]:
    """Return the names of all sources, also of those that plug-ins bring."""
    return [*SOURCES, *(name for name in plugin_names() if name not in SOURCES)]
