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
_VIEWS = ("ConcatBitcast", "AssumeGatherIndicesInBound", "AllocateBuffer")
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
        return _fusion(line, operands, program)
    written = line.result_bytes
    if line.kind in _PARTS:
        part = max((array.padded for array in line.result), default=0)
        return written + sum(min(part, one.result_bytes) for one in operands[:1])
    if number := _UPDATES.get(line.kind):
        return sum(2 * one.result_bytes for one in operands[number : number + 1])
    return written + sum(one.result_bytes for one in operands)


def _fusion(line: Instruction, operands: list[Instruction], program: Program) -> int:
    """Return the bytes that a fusion reads and writes. A parameter is read as the instructions that use it need it."""
    inside = _inside(line, program)
    names = {one.name: one for one in inside}
    total = 0
    in_place: set[str] = set()
    for array, result in zip(line.result, _results(inside, names), strict=False):
        update = None
        if result.kind in _UPDATES and (updated := _parameter(result.operands[0], names)):
            update = names.get(result.operands[_UPDATES[result.kind]])
            in_place.add(updated.name)
        if array.in_memory:
            total += array.padded if update is None else min(array.padded, update.padded)
    for parameter in (one for one in inside if one.kind == "parameter"):
        if parameter.name not in in_place and parameter.number < len(operands):
            whole = operands[parameter.number].result_bytes
            part = _read(parameter.name, inside, program)
            total += whole if part is None else min(whole, part)
    return total


def _inside(line: Instruction, program: Program) -> list[Instruction]:
    return [one for name in line.called.get("calls", ()) for one in program.computations.get(name, ())]


def _results(inside: list[Instruction], names: dict[str, Instruction]) -> list[Instruction]:
    """Return the instructions of a fusion that compute its results, one for each array."""
    root = next((one for one in inside if one.is_root), None)
    if root is None:
        return []
    results = [names[name] for name in root.operands if name in names] if root.kind == "tuple" else [root]
    return [_behind_views(one, names) for one in results]


def _behind_views(one: Instruction, names: dict[str, Instruction]) -> Instruction:
    while one.kind == "bitcast" and one.operands and one.operands[0] in names:
        one = names[one.operands[0]]
    return one


def _read(name: str, inside: list[Instruction], program: Program) -> int | None:
    """Return the bytes of a value that the instructions of a fusion read, if these are only parts of it; None: all."""
    total = 0
    for user in (one for one in inside if name in one.operands):
        parts: list[int | None]
        if user.kind in _PARTS and user.operands[0] == name:
            parts = [user.padded]
        elif user.kind == "bitcast" and not user.is_root:
            parts = [_read(user.name, inside, program)]
        elif user.kind == "fusion":
            numbers = {number for number, operand in enumerate(user.operands) if operand == name}
            nested = _inside(user, program)
            parts = [
                _read(one.name, nested, program) for one in nested if one.kind == "parameter" and one.number in numbers
            ]
        else:
            return None
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        total += sum(known)
    return total


def _parameter(name: str, names: dict[str, Instruction]) -> Instruction | None:
    """Return the parameter of which a value is a view; None if it is not such a view."""
    while (one := names.get(name)) and one.kind in ("bitcast", "copy") and one.operands:
        name = one.operands[0]
    return one if one and one.kind == "parameter" else None
