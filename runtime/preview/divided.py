"""Which arrays fsdp divides, and why it leaves the others whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..config import Config, Explicit, Jit
from ..parallel.mesh import SMALL, partition
from .arrays import fold, rows
from .units import plural

_SHOWN = 4


@dataclass(frozen=True)
class Divided:
    """What fsdp does with the arrays of the parameters."""

    fsdp: int
    arrays: int
    divided: int
    small: tuple[str, ...]
    """Left whole: gathering them would cost more than they take."""
    indivisible: tuple[str, ...]
    """Left whole, although large: fsdp divides none of their dimensions. Name and shape."""


def divided(config: Config, params: Any) -> Divided | None:
    """Sort the arrays of the parameters, blocks that repeat as one name; None for a job without fsdp."""
    if not isinstance(config.parallel, Jit | Explicit) or config.parallel.mesh.fsdp == 1:
        return None
    parts = config.parallel.mesh.fsdp
    every = rows(params)
    whole = [row for row in every if partition(row.shape, parts) == partition((), parts)]
    small = [row for row in whole if math.prod(row.shape) <= SMALL]
    large = [row for row in whole if math.prod(row.shape) > SMALL]
    return Divided(
        parts,
        len(every),
        len(every) - len(whole),
        tuple(row.name for row in fold(small)),
        tuple(f"{row.name} {list(row.shape)}" for row in fold(large)),
    )


def lines(found: Divided | None) -> list[str]:
    """Return lines for the report, none for a job without fsdp."""
    if found is None:
        return []
    if not found.divided:
        head = f"fsdp {found.fsdp} divides nothing: all {plural(found.arrays, 'array')} are whole on every device"
    else:
        head = f"fsdp {found.fsdp} divides {found.divided} of {plural(found.arrays, 'array')}"
    kept = [f"  {head}"]
    if found.indivisible:
        kept.append(f"    {_names(found.indivisible)}: no dimension is a multiple of {found.fsdp}")
    if found.small:
        kept.append(f"    {_names(found.small)}: at most {SMALL:,} numbers, not worth dividing")
    return kept


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
