"""Small wrong changes of a Python source: what a slip of the hand would make of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_IGNORED_FIELDS = ("annotation", "returns", "decorator_list", "type_comment", "bases")
_IGNORED = (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Raise, ast.Assert, ast.Pass, ast.Lambda)
"""Kinds of nodes that are left alone, with all in them: mostly messages, whose wording is nobody's guard."""

_AROUND = 60  # characters of a line that are told on both sides of a change

Change = Callable[[], None]


@dataclass(frozen=True)
class Mutation:
    """One wrong change of a tree that belongs to nobody else."""

    tree: ast.Module
    line: int
    change: Change
    undo: Change

    def source(self) -> str:
        """Return the whole source with the change."""
        self.change()
        try:
            return ast.unparse(self.tree)
        finally:
            self.undo()

    @property
    def described(self) -> tuple[int, str, str]:
        """Return the number of the line, and what is before and after around the change, both as `ast` writes them."""
        before, after = ast.unparse(self.tree).splitlines(), self.source().splitlines()
        old, new = next((a.strip(), b.strip()) for a, b in zip(before, after, strict=False) if a != b)
        start = max(0, _equal(old, new) - _AROUND)
        rest = max(0, _equal(old[start:][::-1], new[start:][::-1]) - _AROUND)
        return self.line, *(
            ("..." * bool(start)) + text[start : len(text) - rest] + "..." * bool(rest) for text in (old, new)
        )


def _equal(one: str, other: str) -> int:
    """Return how many characters at the start of both are the same."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def mutations(source: str) -> list[Mutation]:
    """Return all small changes of a source, always in the same order."""
    tree = ast.parse(source)
    return [Mutation(tree, line, change, undo) for line, change, undo in _changes(tree)]


def _changes(parent: ast.AST) -> Iterator[tuple[int, Change, Change]]:
    for field, value in ast.iter_fields(parent):
        if field in _IGNORED_FIELDS:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or isinstance(node, _IGNORED) or _is_no_step(node):
                continue
            for new in _replacements(node, parent, field):
                yield (
                    getattr(node, "lineno", getattr(parent, "lineno", 0)),
                    lambda field=field, index=index, new=new: _put(parent, field, index, new),
                    lambda field=field, index=index, node=node: _put(parent, field, index, node),
                )
            yield from _changes(node)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _is_no_step(node: ast.AST) -> bool:
    """Return True for blocks that are not run, for docstrings, and for the `strict` of `zip`, which only states a fact."""
    if isinstance(node, ast.If):
        return getattr(node.test, "id", "") == "TYPE_CHECKING"
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _replacements(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST]:
    """Return what may stand in place of a node by mistake."""
    if type(node) in _SWAPS:
        yield _SWAPS[type(node)]()
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        value = node.value
        yield ast.Constant(not value if isinstance(value, bool) else value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Name) and node.id in _NAMES and field == "func":
        yield ast.Name(_NAMES[node.id], ast.Load())
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    elif _is_droppable(node):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield ast.Return(ast.Constant(None))
    if field in ("test", "ifs") and isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.NamedExpr, ast.BoolOp)):
        yield ast.UnaryOp(ast.Not(), node)  # type: ignore[arg-type]


def _is_droppable(node: ast.AST) -> bool:
    """Return True for a statement whose absence leaves the names that others need: a call, or a value of an object."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple))
