"""Words that messages of the launcher and of the runtime share: counts with their noun, long lists cut short, sizes.

Standard library only: the launcher imports this module where JAX is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, what: str) -> str:
    """Return a number with its noun in the right form, such as `1 host`, `2 processes` or `3 matrices`."""
    if number == 1:
        return f"1 {what}"
    if what.endswith("ix"):
        return f"{number:,} {what[:-2]}ices"
    return f"{number:,} {what}{'es' if what.endswith('s') else 's'}"


def first_names(names: Sequence[str], most: int) -> str:
    """Return names separated by commas. If there are more than `most`, the others are counted: `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def first_rows(rows: Sequence[str], most: int) -> list[str]:
    """Return the rows of a message. If there are more than `most`, the last one returned counts the others: `and 3 more`."""
    return [*rows[:most], *([f"and {len(rows) - most} more"] if len(rows) > most else [])]


def megabytes(size: int) -> str:
    """Return a number of bytes as `12.3 MB`, or as `4.5 kB` if it is small."""
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
