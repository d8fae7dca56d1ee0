"""Find inventories of other packages: entry points of the group `podrun.inventories`."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from podrun.runtime.contract import UnavailableError, UserError

from ..yamlfile.short import short
from .base import Listing
from .listing_checks import listing_problems

GROUP = "podrun.inventories"
"""Group of the entry points: functions that take a text and return a Listing."""


def plugin_names() -> list[str]:
    """Return the names of all installed plug-ins without importing them."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def list_by_plugin(name: str, argument: str, typed: str) -> Listing | None:
    """Return the hosts that a plug-in lists for an argument; None if there is no such plug-in.

    Args:
        name: the plug-in's name.
        argument: the text passed to the plug-in.
        typed: start of error messages.

    Raises:
        UserError: the plug-in failed, or returned a wrong listing.
        UnavailableError: a service cannot be reached now.
    """
    entries = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not entries:
        return None
    if len(entries) > 1:
        packages = " and ".join(_package(entry) for entry in entries)
        raise UserError(f"{typed}: {packages} both have a plug-in of this name; uninstall one of them")
    [entry] = entries
    function = _guarded(entry, typed, "cannot be loaded", entry.load)
    listing = _guarded(entry, typed, "has failed", lambda: function(argument))
    if problems := list(listing_problems(listing)):
        raise UserError(
            "\n".join(f"{typed}: {_described(entry)} has returned a wrong listing: {what}" for what in problems)
        )
    assert isinstance(listing, Listing)
    return listing


def _guarded(entry: EntryPoint, typed: str, what: str, action: Callable[[], Any]) -> Any:
    """Call a plug-in's code. Every exception that it raises becomes a UserError."""
    try:
        return action()
    except (UserError, UnavailableError):
        raise
    except (Exception, SystemExit) as error:
        why = short(f"{type(error).__name__}: {error}", 200)
        raise UserError(
            f"{typed}: {_described(entry)} {what}: {why}{_line(error)}; tell its author, or name the hosts with --hosts"
        ) from None


def _line(error: BaseException) -> str:
    """Return a traceback's innermost line outside podrun and importlib: ` (my_inventory.py:18)`; empty without one."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    passing = {Path(__file__), *(path for path, _ in frames if "importlib" in path.parts or path.name.startswith("<"))}
    lines = [f"{path.name}:{line}" for path, line in frames if path not in passing]
    return f" ({lines[-1]})" if lines else ""


def _described(entry: EntryPoint) -> str:
    return f"the plug-in {short(entry.value)} of {_package(entry)}"


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without a name"
