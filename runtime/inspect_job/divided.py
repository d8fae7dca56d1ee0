"""Report which arrays the axes `fsdp` and `model` divide, and why they leave the others whole."""

from __future__ import annotations

import math
from typing import Any

from ..job_report import Divided, DividedByModel, Row
from ..parallel.layout import FSDP, MODEL, SMALL, Partition
from ..wording import counted, first_names
from .arrays import fold, rows

_SHOWN = 4


def divided(partition: Partition, params: Any) -> Divided | None:
    """Summarise the parameters; repeated blocks are folded into one name. None for a job without fsdp."""
    if partition.fsdp == 1:
        return None
    every = rows(params)
    whole = [row for row in every if FSDP not in partition.of(row.name, row.shape)]
    small = [row for row in whole if math.prod(_layer(partition, row)) <= SMALL]
    large = [row for row in whole if row not in small]
    return Divided(
        partition.fsdp,
        len(every),
        len(every) - len(whole),
        tuple(row.name for row in fold(small)),
        tuple(f"{row.name} {list(row.shape)}" for row in fold(large)),
    )


def divided_by_model(partition: Partition, params: Any) -> DividedByModel | None:
    """Summarise the matrices; repeated blocks are folded into one name. None for a job without an axis `model`."""
    if partition.model == 1:
        return None
    every = [row for row in rows(params) if len(_layer(partition, row)) > 1]
    whole = [row for row in every if MODEL not in partition.of(row.name, row.shape)]
    names = tuple(f"{row.name} {list(row.shape)}" for row in fold(whole))
    return DividedByModel(partition.model, len(every), len(every) - len(whole), names)


def lines(summary: Divided | None, by_model: DividedByModel | None) -> list[str]:
    """Return the lines of the report; none for a job that divides no array."""
    kept = []
    if by_model is not None:
        kept.append(f"  model {by_model.model} divides {by_model.divided} of {counted(by_model.matrices, 'matrix')}")
        if by_model.whole:
            kept.append(
                f"    {first_names(by_model.whole, _SHOWN)}: no rule divides them, or no multiple of {by_model.model}"
            )
    if summary is None:
        return kept
    if not summary.divided:
        head = f"fsdp {summary.fsdp} divides nothing: all {counted(summary.arrays, 'array')} are whole on every device"
    else:
        head = f"fsdp {summary.fsdp} divides {summary.divided} of {counted(summary.arrays, 'array')}"
    kept.append(f"  {head}")
    if summary.indivisible:
        kept.append(f"    {first_names(summary.indivisible, _SHOWN)}: no dimension is a multiple of {summary.fsdp}")
    if summary.small:
        kept.append(f"    {first_names(summary.small, _SHOWN)}: at most {SMALL:,} numbers, not worth dividing")
    return kept


def _layer(partition: Partition, row: Row) -> tuple[int, ...]:
    """Return the shape of an array, without its axis of layers."""
    return row.shape[partition.is_stacked(row.name) :]
