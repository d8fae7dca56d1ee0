"""Find the largest buffers of a compiled program at the moment when it needs most memory, under the user's names for them.

The order of instructions is the compiler's own schedule. A buffer lives from the instruction that writes it to the last one
that reads it. The compiler also reuses the memory of operands, so the sum is an upper estimate of its temporaries.
"""

from __future__ import annotations

import re

from ..job_report import Buffer
from .hlo import Instruction, Program

_VIEWS = {
    "bitcast",
    "tuple",
    "get-tuple-element",
    "while",
    "optimization-barrier",
    "parameter",
    "constant",
    "after-all",
}
"""Instructions whose results are in the memory of their operands, or in no memory of the step's temporaries."""
_WRAPPER = re.compile(r"^(?:jit|pjit|pmap|shard_map|vmap|jvp|transpose|checkpoint|remat)\(.*\)$")
_JAX_PARTS = {
    "shard_map",
    "checkpoint",
    "rematted_computation",
    "remat",
    "remat2",
    "closed_call",
    "eval_jaxpr",  # since JAX 0.12
    "core_call",
    "custom_jvp_call",
}
_JAX_PARTS |= {"custom_vjp_call", "while", "while/body", "while/cond", "cond"}
"""Parts of a name that are JAX's own: how a function is transformed, loops, and choices."""
_BRANCH = re.compile(r"^branch_\d+_fun$")
_ARGUMENT = re.compile(r"^\w+\.(\w+)((?:\[[^]]*\]|\.\w+)*)$")
"""Where an array of the state comes from, such as `state.params['h_0']['kernel']`."""


def largest(program: Program, count: int = 10) -> tuple[Buffer, ...]:
    """Return the largest temporaries that are alive at the peak, the largest sum first."""
    live = _peak(program, program.entry)[1]
    by_name = {line.name: line for lines in program.computations.values() for line in lines}
    carried = _carried(program, by_name)
    alike: dict[tuple[str, str, int], list[str]] = {}
    for one in live:
        origin, how = _origin(one, by_name), ""
        if one.name in carried and (carried[one.name][1] or not _named(origin)):
            line, is_stacked = carried[one.name]
            origin, how = (
                _origin(line, by_name),
                ", of every turn of a loop" if is_stacked else ", carried through a loop",
            )
        name = (_named(origin) or ("array" if how else origin.kind)) + how
        array = ", ".join(array.text for array in one.arrays if array.in_memory)
        alike.setdefault((re.sub(r"\d+", "*", name), array, one.result_bytes), []).append(name)
    merged = [
        Buffer(names[0] if len({*names}) == 1 else pattern, array, size, len(names))
        for (pattern, array, size), names in alike.items()
    ]
    return tuple(sorted(merged, key=lambda buffer: -buffer.bytes * buffer.count)[:count])


def _peak(program: Program, computation: str) -> tuple[int, list[Instruction]]:
    """Return the peak bytes of a computation, and the instructions whose results occupy them."""
    lines = program.computations.get(computation, ())
    owner: dict[str, tuple[str, ...]] = {}
    """By instruction: the instructions whose memory its result is in."""
    elements: dict[str, list[tuple[str, ...]]] = {}
    """By tuple, or loop that gets one: the same for each of its elements."""
    last: dict[str, int] = {}
    outputs: set[str] = set()
    for number, line in enumerate(lines):
        of_operands = tuple(dict.fromkeys(name for operand in line.operands for name in owner.get(operand, ())))
        if line.kind == "tuple":
            elements[line.name] = [owner.get(operand, ()) for operand in line.operands]
        elif line.operands and line.operands[0] in elements:
            if line.kind in ("while", "optimization-barrier"):
                elements[line.name] = elements[line.operands[0]]
            elif line.kind == "get-tuple-element":
                of_operands = elements[line.operands[0]][line.number]
        is_view = line.kind in _VIEWS or line.kind.endswith("-done")
        owner[line.name] = of_operands if is_view else (line.name,)
        last.update(dict.fromkeys((*of_operands, line.name), number))
        if line.is_root:
            outputs = set(owner[line.name])
    best, total = (0, list[Instruction]()), 0
    live: dict[str, Instruction] = {}
    ends: dict[int, list[str]] = {}
    for name, number in last.items():
        ends.setdefault(number, []).append(name)
    for number, line in enumerate(lines):
        if line.name in owner[line.name] and line.name not in outputs and line.result_bytes:
            live[line.name] = line
            total += line.result_bytes
        inner = max(
            (_peak(program, body) for body in line.called.get("body", ())), key=lambda peak: peak[0], default=(0, [])
        )
        if total + inner[0] > best[0]:
            best = total + inner[0], [*live.values(), *inner[1]]
        for name in ends.get(number, ()):
            if gone := live.pop(name, None):
                total -= gone.result_bytes
    return best


def _carried(program: Program, by_name: dict[str, Instruction]) -> dict[str, tuple[Instruction, bool]]:
    """Return the instruction that computes each array that a loop changes: its part of one iteration, or all of it.

    The bool says whether the array collects the results of all iterations.
    """
    carried = {}
    for loop in (line for line in by_name.values() if line.kind == "while"):
        start = by_name.get(loop.operands[0])
        ends = [line for name in loop.called.get("body", ()) for line in program.computations[name] if line.is_root]
        if start and start.kind == "tuple" and ends and ends[0].kind == "tuple":
            for before, after in zip(start.operands, ends[0].operands, strict=True):
                line = by_name[after]
                part = _update(line, program, by_name)
                if part or line.kind != "get-tuple-element":  # which would hand on what it got
                    carried[before] = (part or line, part is not None)
    return carried


def _update(line: Instruction, program: Program, by_name: dict[str, Instruction]) -> Instruction | None:
    """Return the instruction whose result `line` writes into a part of an array; None if it does not."""
    if line.kind == "dynamic-update-slice":
        return by_name.get(line.operands[1])
    if line.kind == "bitcast" and line.operands[0] in by_name:
        return _update(by_name[line.operands[0]], program, by_name)
    inside = [one for name in line.called.get("calls", ()) for one in program.computations.get(name, ())]
    for one in inside:
        if one.kind == "dynamic-update-slice":
            value = by_name[one.operands[1]]
            while value.kind in ("bitcast", "reshape", "convert", "copy", "transpose") and value.operands:
                value = by_name[value.operands[0]]
            if value.kind != "parameter":
                return value
            given = [item for item in inside if item.kind == "parameter"]
            return by_name.get(line.operands[value.number]) if value.number < len(given) else None
    return None


def _origin(line: Instruction, by_name: dict[str, Instruction]) -> Instruction:
    """Return the instruction that computed the result: `line`, or if it has no name, the one whose result it copies."""
    while not line.op_name and line.operands and line.operands[0] in by_name:
        line = by_name[line.operands[0]]
    return line


def _named(line: Instruction) -> str:
    """Return the user's name of an instruction's result, `h_0/attn/softmax/exp, for the gradient`; empty if it has none."""
    if argument := _ARGUMENT.match(line.op_name):
        keys = re.findall(r"[^][.']+", argument[2])
        return "/".join((argument[1], *keys))
    parts = _parts(line.op_name)
    is_jaxs = [part in _JAX_PARTS or _WRAPPER.match(part) or _BRANCH.match(part) for part in parts]
    where = "/".join(part for part, leave_out in zip(parts, is_jaxs, strict=True) if not leave_out)
    if not where or "rematted_computation" in parts:
        return where and f"{where}, repeated by remat"
    return f"{where}, for the gradient" if "transpose(" in line.op_name else where


def _parts(name: str) -> list[str]:
    """Split at slashes that are in no brackets: `jit(a/b)/c` has two parts. A loop and its body are one part."""
    parts, depth = [""], 0
    for letter in name:
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth == 0 and parts[-1] != "while":
            parts.append("")
        else:
            parts[-1] += letter
    return parts
