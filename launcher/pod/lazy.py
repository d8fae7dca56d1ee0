"""Import an entry of a table by its name, so that only the entry in use is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load(place: str) -> Any:
    """Import `room.module:attribute` and return the attribute; for `room.module`, return the module.

    Args:
        place: a module of the launcher, and a name in it, such as `transport.local:LocalTransport`.

    Raises:
        ImportError, AttributeError: it does not exist.
    """
    module, colon, attribute = place.partition(":")
    imported = import_module(f"..{module}", __package__)
    return getattr(imported, attribute) if colon else imported
