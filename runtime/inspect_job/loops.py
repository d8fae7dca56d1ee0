"""Determine how often the instructions of a compiled program run: the number of iterations of its loops.

The compilers of CPUs and GPUs write the number of iterations beside a loop. That of TPUs does not, so it is read from the
loop itself: the condition compares a counter with a constant, the loop's first operand has the counter's first value, and the
body adds a constant to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .hlo import Instruction, Program

_SAME = {"copy", "copy-start", "copy-done", "bitcast", "reshape", "convert", "optimization-barrier"}
"""Instructions whose result has the value of their first operand."""
_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}
"""Maps the direction of a comparison to the direction after its operands are exchanged, or negated."""


def runs(program: Program) -> Iterator[tuple[str, Instruction, int]]:
    """Yield (computation, instruction, how often it runs), from the entry on, but not inside fusions.

    The body of a loop with an unknown number of iterations counts once, and so does the condition of every loop.
    """
    loops = _Loops(program)

    def within(name: str, times: int) -> Iterator[tuple[str, Instruction, int]]:
        for line in program.computations.get(name, ()):
            yield name, line, times
            if line.kind == "fusion":
                continue
            turns = loops.turns(line) if line.kind == "while" else None
            for how, names in line.called.items():
                if how == "to_apply" and line.kind != "call":
                    continue
                for called in names:
                    yield from within(called, times if turns is None or how != "body" else times * turns)

    yield from within(program.entry, 1)


def unknown_loops(program: Program) -> int:
    """Return the number of a step's loops with an unknown number of iterations, so that `runs` counts them once."""
    loops = _Loops(program)
    return sum(loops.turns(line) is None for _, line, _ in runs(program) if line.kind == "while")


@dataclass(frozen=True)
class _Carried:
    """The sum of a loop's tuple element, at the beginning of an iteration, and a constant: `element + plus`."""

    loop: str
    index: int
    plus: int = 0


_Value = int | _Carried | None
"""A scalar integer of a program; None: unknown."""


class _Loops:
    """The loops of a program."""

    def __init__(self, program: Program) -> None:
        lines = [(name, line) for name, lines in program.computations.items() for line in lines]
        self._by_name = {line.name: line for _, line in lines}
        self._roots = {name: line for name, line in lines if line.is_root}
        self._callers = {called: line for _, line in lines for names in line.called.values() for called in names}
        self._home = {line.name: name for name, line in lines}

    def turns(self, loop: Instruction) -> int | None:
        """Return how often the body of a loop runs; None if unknown."""
        if loop.trips is not None:
            return loop.trips
        test = self._test(loop)
        direction = re.search(r"\bdirection=(LT|GT|LE|GE|NE)", test.text) if test else None
        if not test or not direction:
            return None
        (counter, bound), how = (self._settled(self._value(name)) for name in test.operands), direction[1]
        if isinstance(counter, int):
            counter, bound, how = bound, counter, _FLIPPED[how]
        if not isinstance(counter, _Carried) or counter.loop != loop.name or not isinstance(bound, int):
            return None
        first, step = self._settled(self._element(loop.operands[0], counter.index)), self._step(counter)
        return _count(first + counter.plus, step, how, bound) if isinstance(first, int) and step else None

    def _test(self, loop: Instruction) -> Instruction | None:
        """Return the comparison that decides whether another iteration follows."""
        test = self._root(loop, "condition")
        while test and test.kind != "compare":
            test = self._by_name.get(test.operands[0]) if test.kind in _SAME else self._root(test)
        return test

    def _root(self, line: Instruction, how: str = "") -> Instruction | None:
        """Return the root instruction of the computation that `line` calls: the one whose result the computation returns."""
        if not how and line.kind not in ("fusion", "call"):
            return None
        called = line.called.get(how or ("calls" if line.kind == "fusion" else "to_apply"), ())
        return self._roots.get(called[0]) if called else None

    def _value(self, name: str) -> _Value:
        """Return the value of a scalar."""
        line = self._by_name.get(name)
        if line is None:
            return None
        if line.kind == "constant":
            number = re.search(r" constant\((-?\d+)\)", line.text)
            return int(number[1]) if number else None
        if line.kind in ("add", "subtract"):
            left, right = (self._value(operand) for operand in line.operands)
            return _sum(left, right, 1 if line.kind == "add" else -1)
        if line.kind == "get-tuple-element":
            return self._element(line.operands[0], line.number)
        if line.kind == "parameter":
            caller = self._callers.get(self._home[name])
            inside = caller and caller.kind in ("fusion", "call")
            return self._value(caller.operands[line.number]) if caller and inside else None
        if line.kind in _SAME:
            return self._value(line.operands[0])
        root = self._root(line)
        return self._value(root.name) if root else None

    def _element(self, name: str, index: int) -> _Value:
        """Return the value of an element of a tuple."""
        line = self._by_name.get(name)
        if line is None:
            return None
        if line.kind == "tuple":
            return self._value(line.operands[index])
        if line.kind == "while":
            is_same = self._step(_Carried(line.name, index)) == 0
            return self._element(line.operands[0], index) if is_same else None
        if line.kind == "parameter":
            caller = self._callers.get(self._home[name])
            if caller and caller.kind == "while":
                return _Carried(caller.name, index)
            inside = caller and caller.kind in ("fusion", "call")
            return self._element(caller.operands[line.number], index) if caller and inside else None
        if line.kind in _SAME:
            return self._element(line.operands[0], index)
        root = self._root(line)
        return self._element(root.name, index) if root else None

    def _step(self, value: _Carried) -> int | None:
        """Return the number that an iteration adds to an element of the loop's tuple; None if unknown."""
        root = self._root(self._by_name[value.loop], "body")
        after = self._element(root.name, value.index) if root else None
        is_own = isinstance(after, _Carried) and (after.loop, after.index) == (value.loop, value.index)
        return after.plus if isinstance(after, _Carried) and is_own else None

    def _settled(self, value: _Value) -> _Value:
        """Return the value of a tuple element that no iteration changes; otherwise `value`."""
        while isinstance(value, _Carried) and self._step(value) == 0:
            value = _sum(self._element(self._by_name[value.loop].operands[0], value.index), value.plus)
        return value


def _sum(left: _Value, right: _Value, sign: int = 1) -> _Value:
    if isinstance(right, _Carried) and sign == 1:
        left, right = right, left
    if left is None or not isinstance(right, int):
        return None
    return left + sign * right if isinstance(left, int) else _Carried(left.loop, left.index, left.plus + sign * right)


def _count(first: int, step: int, direction: str, bound: int) -> int | None:
    """Return how many of first, first + step, ... pass the comparison with the bound; None if none fails it."""
    if step < 0:
        first, step, direction, bound = -first, -step, _FLIPPED[direction], -bound
    if direction == "NE":
        turns, rest = divmod(bound - first, step)
        return turns if turns >= 0 and rest == 0 else None
    if direction in ("LT", "LE"):
        return max(0, -(-(bound + (direction == "LE") - first) // step))
    return None
