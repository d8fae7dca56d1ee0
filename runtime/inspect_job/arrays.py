"""List the arrays of a tree as rows. Rows of repeated blocks are folded into one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax

from ..job_report import Row

_NUMBERED = re.compile(r"(.*?)(\d+)")


def rows(tree: Any, updates: Sequence[str] = ()) -> list[Row]:
    """Return a row for each array of a tree; `updates` has the optimizer's treatment of each, as in `Row.update`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [
        Row(
            tuple(_key(key) for key in path),
            tuple(leaf.shape),
            str(leaf.dtype),
            leaf.dtype.itemsize,
            update=updates[number] if updates else "",
        )
        for number, (path, leaf) in enumerate(leaves)
    ]


def fold(rows: list[Row]) -> list[Row]:
    """Fold rows of equal shape, `h_0.kernel`, `h_1.kernel` and so on, into one, `h_[0-11].kernel` with `repeat` 12."""
    for depth in range(max((len(row.path) for row in rows), default=0)):
        rows = _fold_at(rows, depth)
    return rows


def _fold_at(rows: list[Row], depth: int) -> list[Row]:
    """Fold rows whose paths differ only in the number at the end of the part at `depth`."""
    groups: dict[Any, list[tuple[Row, int]]] = {}
    for row in rows:
        numbered = _NUMBERED.fullmatch(row.path[depth]) if depth < len(row.path) else None
        key: Any = row
        if numbered:
            key = (row.path[:depth], numbered[1], row.path[depth + 1 :], row.shape, row.dtype, row.repeat, row.update)
        groups.setdefault(key, []).append((row, int(numbered[2]) if numbered else 0))
    return [_folded([row for row, _ in group], [number for _, number in group], depth) for group in groups.values()]


def _folded(group: list[Row], numbers: list[int], depth: int) -> Row:
    first = group[0]
    if len(group) == 1:
        return first
    stem = re.sub(r"\d+$", "", first.path[depth])
    path = (*first.path[:depth], f"{stem}[{_ranges(numbers)}]", *first.path[depth + 1 :])
    return replace(first, path=path, repeat=first.repeat * len(group))


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers as `0-3,7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _key(key: Any) -> str:
    """Return the name of a key in a path: a dictionary's key, a class's field, or an index."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
