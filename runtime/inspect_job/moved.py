"""Sum up the bytes that a compiled program reads from the device's memory and writes to it.

Every instruction reads its operands and writes its results once, in whole tiles. A slice or lookup reads as much as it
results in; an update in place reads and writes as much as it updates. Memory of the compute unit itself, such as a TPU's
VMEM, is not counted.
"""

from __future__ import annotations

import re

from .hlo import Instruction, Program
from .loops import runs

_NOTHING = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "optimization-barrier"),
    *("while", "conditional", "call", "async-start", "partition-id", "replica-id", "iota", "recv"),
}
"""Instructions that move no bytes themselves."""
_VIEWS = ("ConcatBitcast", "AssumeGatherIndicesInBound")
"""Custom calls on TPUs that move no bytes."""
_PARTS = {"slice", "dynamic-slice", "gather", "slice-start"}
"""Instructions that read a part of their first operand, of the size of the result."""
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Instructions that change a part of their first operand in place, and the number of the operand that has the new values."""
_TARGET = re.compile(r'custom_call_target="([^"]*)"')


def moved(program: Program) -> int:
    """Return the bytes that a step reads and writes; in loops as often as they run."""
    by_name = {line.name: line for lines in program.computations.values() for line in lines}
    return sum(times * _of(line, program, by_name) for _, line, times in runs(program))


def _of(line: Instruction, program: Program, by_name: dict[str, Instruction]) -> int:
    if line.kind in _NOTHING or line.kind.endswith("-done"):
        return 0
    if line.kind == "custom-call" and (target := _TARGET.search(line.text)) and target[1] in _VIEWS:
        return 0
    operands = [by_name[name] for name in line.operands if name in by_name]
    if line.kind == "fusion":
        inside = [one for name in line.called.get("calls", ()) for one in program.computations.get(name, ())]
        return _fusion(line, operands, inside)
    written = line.result_bytes
    if line.kind in _PARTS:
        part = max((array.padded for array in line.result), default=0)
        return written + sum(min(part, one.result_bytes) for one in operands[:1])
    if number := _UPDATES.get(line.kind):
        return sum(2 * one.result_bytes for one in operands[number : number + 1])
    return written + sum(one.result_bytes for one in operands)


def _fusion(line: Instruction, operands: list[Instruction], inside: list[Instruction]) -> int:
    """Return the bytes that a fusion reads and writes. A parameter is read as the instructions that use it need it."""
    names = {one.name: one for one in inside}
    written = line.result_bytes
    in_place: set[str] = set()
    for one in inside:
        if one.kind in _UPDATES and _is_result(one, inside):
            updated = _parameter(one.operands[0], names)
            update = names.get(one.operands[_UPDATES[one.kind]])
            if updated and update:
                in_place.add(updated.name)
                written = min(written, update.padded)
    read = 0
    for parameter in (one for one in inside if one.kind == "parameter"):
        if parameter.name in in_place or parameter.number >= len(operands):
            continue
        whole = operands[parameter.number].result_bytes
        users = [one for one in inside if parameter.name in one.operands]
        if users and all(one.kind in _PARTS and one.operands[0] == parameter.name for one in users):
            whole = min(whole, sum(one.padded for one in users))
        read += whole
    return written + read


def _is_result(line: Instruction, inside: list[Instruction]) -> bool:
    """Return whether the instruction, or only a view of it, is the fusion's result."""
    return line.is_root or any(one.is_root and one.kind == "bitcast" and line.name in one.operands for one in inside)


def _parameter(name: str, names: dict[str, Instruction]) -> Instruction | None:
    """Return the parameter of which a value is a view; None if it is not such a view."""
    while (one := names.get(name)) and one.kind in ("bitcast", "copy") and one.operands:
        name = one.operands[0]
    return one if one and one.kind == "parameter" else None
