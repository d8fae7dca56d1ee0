"""Words that messages of the launcher and of the runtime share: counts with a noun, lists cut short, names, units.

Standard library only: the launcher imports this module where JAX is not installed.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")


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


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return `; did you mean NAME?` with the most similar of the known names; empty if none is similar."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def megabytes(size: int) -> str:
    """Return a number of bytes as `12.3 MB`, or as `4.5 kB` if it is small."""
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def in_bytes(number: float) -> str:
    """Return `1.5 KiB` for `1536`."""
    return _scaled(number, 1024, _BYTES)


def in_flops(number: float) -> str:
    """Return `2.5 TFLOP` for `2.5e12`."""
    return _scaled(number, 1000, tuple(f"{prefix}FLOP" for prefix in _THOUSANDS))


def in_seconds(seconds: float) -> str:
    """Return `2.5 ms` for `0.0025`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _scaled(number: float, base: int, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if abs(number) < base:
            return f"{number:.0f} {unit}" if unit == units[0] else f"{number:.1f} {unit}"
        number /= base
    return f"{number:.1f} {units[-1]}"
