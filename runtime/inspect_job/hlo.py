"""Read a compiled program in XLA's text form: its computations, and their instructions in the order in which they run."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_HEAD = re.compile(r"^(ENTRY )?%?(?P<name>[\w.-]+) \(.*\) -> .*\{$")
_LINE = re.compile(
    r"^\s*(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<type>\(.*?\)|\S+) (?P<kind>[a-z][\w-]*)\((?P<rest>.*)$"
)
_ARRAY = re.compile(
    r"\b(?P<dtype>pred|bf16|[a-z]+(?P<bits>\d+)[a-z0-9]*)\[(?P<shape>[\d,]*)\]"
    r"(?:\{(?P<order>[\d,]*)(?::(?P<tiles>(?:T\([\d,*]+\)(?:\([\d,*]+\))*)?)(?P<more>[^}]*))?\})?"
)
_BITS = {"pred": 8, "bf16": 16}
_CALLED = re.compile(
    r"\b(?P<how>calls|to_apply|body|condition|branch_computations)=\{?(?P<names>%[\w.-]+(?:, ?%[\w.-]+)*)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclass(frozen=True)
class Array:
    """One array of a type, such as `f32[8,6]{1,0:T(8,128)}`."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int
    """Without padding."""
    padded: int
    """Bytes in memory: a TPU's arrays consist of whole tiles."""
    in_memory: bool
    """False for arrays in a memory of the compute unit itself, such as a TPU's VMEM."""

    @property
    def text(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Instruction:
    name: str
    kind: str
    arrays: tuple[Array, ...]
    """Its result; several if it is a tuple."""
    operands: tuple[str, ...]
    op_name: str
    """Its place in the traced function, such as `jit(step)/transpose(jvp(GPT2))/h_0/attn/dot_general`."""
    called: dict[str, tuple[str, ...]]
    """Computations that it calls, by role: `calls`, `body`, `condition`, ..."""
    trips: int | None
    """Iterations of a loop; None if the compiler does not write their number."""
    is_root: bool
    text: str

    @property
    def result(self) -> tuple[Array, ...]:
        """Return the arrays that the instruction writes. The type of an asynchronous start also has its operands."""
        if not self.kind.endswith("-start") or self.kind == "all-reduce-start" or len(self.arrays) == 1:
            return self.arrays
        if self.kind == "copy-start":  # (result, operand, ...)
            return self.arrays[:1]
        return self.arrays[len(self.operands) : 2 * len(self.operands)]

    @property
    def number(self) -> int:
        """Return the number of a parameter, or of the element that `get-tuple-element` takes."""
        return int(re.findall(r"(?: parameter\(|\), index=)(\d+)", self.text)[0])

    @property
    def padded(self) -> int:
        """Return the bytes that the result takes in whole tiles, in any kind of memory."""
        return sum(array.padded for array in self.result)

    @property
    def result_bytes(self) -> int:
        """Return the bytes of the device's memory that the result takes, with padding."""
        return sum(array.padded for array in self.result if array.in_memory)


@dataclass(frozen=True)
class Program:
    """The computations of a program by name, each in the order of its schedule."""

    computations: dict[str, tuple[Instruction, ...]]
    entry: str


def read(text: str) -> Program:
    """Parse a program in XLA's text form."""
    computations: dict[str, tuple[Instruction, ...]] = {}
    entry, name = "", ""
    lines: list[Instruction] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name, lines = head["name"], []
            entry = name if head[1] else entry
        elif line.startswith("}"):
            computations[name] = tuple(lines)
        elif match := _LINE.match(line):
            lines.append(_instruction(match, line))
    return Program(computations, entry)


def _instruction(match: re.Match[str], line: str) -> Instruction:
    rest = match["rest"]
    end = _closing(rest)
    op_name = re.search(r'op_name="((?:[^"\\]|\\.)*)"', rest)
    trips = _TRIPS.search(rest)
    return Instruction(
        name=match["name"],
        kind=match["kind"],
        arrays=arrays(match["type"]),
        operands=tuple(re.findall(r"%([\w.-]+)", rest[:end])),
        op_name=op_name[1].replace("\\'", "'") if op_name else "",
        called={m["how"]: tuple(re.findall(r"%([\w.-]+)", m["names"])) for m in _CALLED.finditer(rest[end:])},
        trips=int(trips[1]) if trips else None,
        is_root=bool(match["root"]),
        text=line,
    )


def _closing(text: str) -> int:
    """Return the index of the bracket that closes an instruction's operands."""
    depth = 1
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return index
    return len(text)


def arrays(type_: str) -> tuple[Array, ...]:
    """Return the arrays in a type in XLA's text form."""
    return tuple(_array(match) for match in _ARRAY.finditer(type_))


def _array(match: re.Match[str]) -> Array:
    shape = tuple(int(n) for n in match["shape"].split(",") if n)
    bits = _BITS.get(match["dtype"]) or int(match["bits"])
    order = [int(n) for n in (match["order"] or "").split(",") if n]
    full = list(shape)
    if tile := re.match(r"T\(([\d,]+)\)", match["tiles"] or ""):
        for dimension, size in zip(order, reversed(tile[1].split(",")), strict=False):
            full[dimension] = -(-full[dimension] // int(size)) * int(size)
    memory = re.search(r"S\((\d+)\)", match["more"] or "")
    return Array(
        match["dtype"],
        shape,
        math.prod(shape) * bits // 8,
        math.prod(full) * bits // 8,
        memory is None or memory[1] in ("0", "5"),
    )
