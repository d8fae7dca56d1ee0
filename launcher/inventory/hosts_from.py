"""Ask a source of hosts by its name: `--hosts-from metadata`, `gke`, or that of a plug-in."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import cast

from podrun.runtime.contract import UserError

from ..yamlfile.short import short
from .base import Listing
from .plugins import GROUP, list_by_plugin, plugin_names

SOURCES = ("metadata", "gke")
"""Names of podrun's own sources. The module of that name here has `list_hosts`; a plug-in cannot take its place."""


def from_option(text: str) -> Listing:
    """Return the hosts of a source. What follows a colon is for a plug-in: `mine:pod-a`.

    Raises UserError, and UnavailableError if a service cannot be asked now.
    """
    name, colon, argument = text.partition(":")
    if name in SOURCES:
        if colon:
            raise UserError(f"--hosts-from {name}: takes nothing after its name; leave {short(f':{argument}')} out")
        return cast(Listing, import_module(f".{name}", __package__).list_hosts())
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
