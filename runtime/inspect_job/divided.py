"""Report which arrays fsdp divides, and why it leaves the others whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..config import Config
from ..parallel.layout import SMALL, partition
from .arrays import fold, rows
from .units import plural

_SHOWN = 4


@dataclass(frozen=True)
class Divided:
    """Summary of the parameters that fsdp divides and leaves whole."""

    fsdp: int
    arrays: int
    divided: int
    small: tuple[str, ...]
    """Names of arrays left whole because gathering them would take too much time for the memory saved."""
    indivisible: tuple[str, ...]
    """Names and shapes of large arrays left whole because no dimension is a multiple of fsdp."""


def divided(config: Config, params: Any, stacked: Sequence[str]) -> Divided | None:
    """Summarise the parameters; repeated blocks are folded into one name. None for a job without fsdp.

    `stacked` is that of the task.
    """
    parts = config.parallel.grid.fsdp
    if parts == 1:
        return None
    every = rows(params)
    divided = [any(partition(row.shape, parts, row.path[0] in stacked)) for row in every]
    whole = [row for row, parted in zip(every, divided, strict=True) if not parted]
    small = [row for row in whole if math.prod(row.shape[row.path[0] in stacked :]) <= SMALL]
    large = [row for row in whole if row not in small]
    return Divided(
        parts,
        len(every),
        len(every) - len(whole),
        tuple(row.name for row in fold(small)),
        tuple(f"{row.name} {list(row.shape)}" for row in fold(large)),
    )


def lines(summary: Divided | None) -> list[str]:
    """Return the lines of the report; none for a job without fsdp."""
    if summary is None:
        return []
    if not summary.divided:
        head = f"fsdp {summary.fsdp} divides nothing: all {plural(summary.arrays, 'array')} are whole on every device"
    else:
        head = f"fsdp {summary.fsdp} divides {summary.divided} of {plural(summary.arrays, 'array')}"
    kept = [f"  {head}"]
    if summary.indivisible:
        kept.append(f"    {_names(summary.indivisible)}: no dimension is a multiple of {summary.fsdp}")
    if summary.small:
        kept.append(f"    {_names(summary.small)}: at most {SMALL:,} numbers, not worth dividing")
    return kept


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
