"""Import what a table names. Tables hold names alone, so that a choice is imported only by those who use it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load(place: str) -> Any:
    """Return what a table names by `room.module:attribute`, or the module of `room.module`. Imports it only now.

    Args:
        place: a module of the launcher and a name in it, such as `transport.local:LocalTransport`.

    Raises:
        ImportError, AttributeError: the table is wrong.
    """
    module, colon, attribute = place.partition(":")
    imported = import_module(f"..{module}", __package__)
    return getattr(imported, attribute) if colon else imported
