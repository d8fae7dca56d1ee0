"""Show what a user has given, in a message. It imports nothing: some of those who need it must start fast."""

from __future__ import annotations


def short(value: object, limit: int = 60) -> str:
    """Return the start of a value, as Python writes it."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
