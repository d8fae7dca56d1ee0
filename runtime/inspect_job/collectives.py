"""Find the collective operations in a compiled program."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
_LINE = re.compile(rf"= (?P<type>\(.*?\)|\S+) (?P<kind>{_KINDS}|ragged-all-to-all)(?P<start>-start)?\(")
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]+(\d+)[a-z0-9]*)\[([\d,]*)\]")
_BITS = {"pred": 8, "bf16": 16}


@dataclass(frozen=True)
class Collective:
    """Collective operations of the same kind and type."""

    kind: str
    array: str
    """Type of the result on each device, such as `f32[8,6]`; several are joined by commas."""
    bytes: int
    """Size in bytes of one operation's result on each device."""
    count: int


def collectives(program: str) -> tuple[Collective, ...]:
    """Return the collectives of a program in XLA's text form, each at its first occurrence."""
    sent: Counter[tuple[str, str, int]] = Counter()
    for match in _LINE.finditer(program):
        arrays = [(name[0], _size(name)) for name in _ARRAY.finditer(match["type"])]
        if match["start"] and match["kind"] != "all-reduce":  # its type begins with the operand
            arrays = arrays[1:2]
        text = ", ".join(name for name, _ in arrays)
        sent[match["kind"], text, sum(size for _, size in arrays)] += 1
    return tuple(Collective(kind, text, size, count) for (kind, text, size), count in sent.items())


def _size(array: re.Match[str]) -> int:
    """Return the size in bytes of an array such as `f32[8,6]`."""
    bits = _BITS.get(array[1]) or int(array[2])
    return math.prod(int(size) for size in array[3].split(",") if size) * bits // 8
