"""Get hosts from a named source: `--hosts-from metadata`, `gke`, or a plug-in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from podrun.runtime.contract import UserError
from podrun.runtime.wording import did_you_mean

from ..pod.lazy import load
from ..yamlfile.short import short
from .base import Listing
from .plugins import GROUP, list_by_plugin, plugin_names

SOURCES: Mapping[str, str] = MappingProxyType(
    {"metadata": "engines.tpu.metadata:list_hosts", "gke": "engines.kubernetes.gke:list_hosts"}
)
"""Functions that list the hosts of podrun's own sources, by name. A plug-in cannot override them."""


def from_option(text: str) -> Listing:
    """Return the hosts of a source. The text after a colon is the argument of a plug-in: `mine:pod-a`.

    Raises:
        UserError: there is no such source, or its argument is wrong.
        UnavailableError: a service cannot be reached now.
    """
    name, colon, argument = text.partition(":")
    if name in SOURCES:
        if colon:
            raise UserError(f"--hosts-from {name}: takes nothing after its name; leave {short(f':{argument}')} out")
        return cast(Listing, load(SOURCES[name])())
    listing = list_by_plugin(name, argument, f"--hosts-from {name}")
    if listing is None:
        known = names()
        raise UserError(
            f"--hosts-from: there is no source of hosts {short(name)}{did_you_mean(name, known)}\n"
            f"sources here: {', '.join(known)}; a package adds others by entry points of the group {GROUP}"
        )
    return listing


def names() -> list[str]:
    """Return the names of all sources, including plug-ins."""
    return [*SOURCES, *(name for name in plugin_names() if name not in SOURCES)]
