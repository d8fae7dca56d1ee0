"""Find the communication in a compiled program."""

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
    """Operations of one kind on arrays of one type."""

    kind: str
    array: str
    """Type of what each device has afterwards: `f32[8,6]`; several with commas."""
    bytes: int
    """Size of that on each device, of one operation."""
    count: int


def collectives(program: str) -> tuple[Collective, ...]:
    """Return what a program in XLA's text form sends, in the order of its first operations."""
    sent: Counter[tuple[str, str, int]] = Counter()
    for match in _LINE.finditer(program):
        arrays = [(name[0], _size(name)) for name in _ARRAY.finditer(match["type"])]
        if match["start"] and match["kind"] != "all-reduce":  # its type begins with the operand
            arrays = arrays[1:2]
        text = ", ".join(name for name, _ in arrays)
        sent[match["kind"], text, sum(size for _, size in arrays)] += 1
    return tuple(Collective(kind, text, size, count) for (kind, text, size), count in sent.items())


def _size(array: re.Match[str]) -> int:
    """Return the bytes of an array such as `f32[8,6]`."""
    bits = _BITS.get(array[1]) or int(array[2])
    return math.prod(int(size) for size in array[3].split(",") if size) * bits // 8
