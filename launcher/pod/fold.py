"""Fold names of hosts into ranges: the inverse of `ranges.expand`. PURE."""

from __future__ import annotations

import re
from collections.abc import Iterable

_DIGITS = 9  # longer numbers are treated as text, not as part of a range


def fold(names: Iterable[str]) -> str:
    """Fold `tpu-0, tpu-1, tpu-2, tpu-7, head` into `tpu-[0-2,7],head`; groups keep the order of their first names."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(names):
        prefix, number, suffix = _split(name)
        groups.setdefault((prefix, suffix) if number else (name, "\0"), []).append(number)
    return ",".join(_format(prefix, numbers, suffix) for (prefix, suffix), numbers in groups.items())


def _split(name: str) -> tuple[str, str, str]:
    """Split a host name at the last number of its first label, an address at its last number: (before, number, after)."""
    label, dot, domain = name.partition(".")
    if name.replace(".", "").isdigit():
        label, dot, domain = name, "", ""
    numbers = list(re.finditer(r"\d+", label))
    if not numbers or len(numbers[-1][0]) > _DIGITS or ":" in name:
        return name, "", ""
    last = numbers[-1]
    return label[: last.start()], last[0], label[last.end() :] + dot + domain


def _format(prefix: str, numbers: list[str], suffix: str) -> str:
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]}{suffix.strip(chr(0))}"
    # `08-10` has two digits throughout; without a leading zero anywhere a range may go from 9 to 10.
    padded = {len(n) for n in numbers if n.startswith("0") and n != "0"}
    by_width: dict[int, list[int]] = {}
    for number in numbers:
        by_width.setdefault(len(number) if len(number) in padded else 0, []).append(int(number))
    ranges = [
        f"{first:0{width}}" + (f"-{last:0{width}}" if last > first else "")
        for width in sorted(by_width)
        for first, last in _ranges(by_width[width])
    ]
    return f"{prefix}[{','.join(ranges)}]{suffix}"


def _ranges(values: list[int]) -> list[tuple[int, int]]:
    """Return each run of consecutive numbers as (first, last)."""
    ranges: list[tuple[int, int]] = []
    for value in sorted(values):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], value)
        else:
            ranges.append((value, value))
    return ranges
