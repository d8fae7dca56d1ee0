"""PURE: names of hosts to what people write for them: the way back from `ranges.expand`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_DIGITS = 9  # more of them are no number in a range


def fold(names: Iterable[str]) -> str:
    """`tpu-0, tpu-1, tpu-2, tpu-7, head` to `tpu-[0-2,7],head`; groups in the order of their first names."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(names):
        prefix, number, suffix = _split(name)
        groups.setdefault((prefix, suffix) if number else (name, "\0"), []).append(number)
    return ",".join(_written(prefix, numbers, suffix) for (prefix, suffix), numbers in groups.items())


def _split(name: str) -> tuple[str, str, str]:
    """Before, in and after the last number of the name's first label; of an address the last number."""
    label, dot, domain = name.partition(".")
    if name.replace(".", "").isdigit():
        label, dot, domain = name, "", ""
    numbers = list(re.finditer(r"\d+", label))
    if not numbers or len(numbers[-1][0]) > _DIGITS or ":" in name:
        return name, "", ""
    last = numbers[-1]
    return label[: last.start()], last[0], label[last.end() :] + dot + domain


def _written(prefix: str, numbers: list[str], suffix: str) -> str:
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
    """Each run of numbers without a gap as its first and its last."""
    found: list[tuple[int, int]] = []
    for value in sorted(values):
        if found and value == found[-1][1] + 1:
            found[-1] = (found[-1][0], value)
        else:
            found.append((value, value))
    return found
