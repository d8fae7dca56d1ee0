"""Abbreviate a user's value for a message. Imports nothing, so that modules that must start fast can use it."""

from __future__ import annotations


def short(value: object, limit: int = 60) -> str:
    """Return the repr of a value, cut after `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
