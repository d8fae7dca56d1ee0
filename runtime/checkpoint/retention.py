"""Decide which checkpoints are kept (PURE), and remove the others so that a killed removal leaves none half."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..contract import CHECKPOINT_LOSS, CHECKPOINT_PINNED

_REMOVED = ".podrun-removed"
"""End of the name of a checkpoint that is being removed."""


def superseded(
    losses: Mapping[int, float | None], keep: int, keep_best: int = 0, pinned: Collection[int] = ()
) -> list[int]:
    """Return the steps of the checkpoints that may go, the oldest first.

    Args:
        losses: the validation loss of each complete checkpoint by step; None if it is not known.
        keep: number of the newest to keep.
        keep_best: number of those with the lowest loss to keep besides, of equal ones the newer.
        pinned: steps that the user keeps.
    """
    steps = sorted(losses)
    known = {step: loss for step, loss in losses.items() if loss is not None and math.isfinite(loss)}
    best = sorted(known, key=lambda step: (known[step], -step))[:keep_best]
    kept = {*steps[-keep:], *best, *pinned}
    return [step for step in steps if step not in kept]


def remove_superseded(folders: Mapping[int, Path], keep: int, keep_best: int) -> list[Path]:
    """Remove the checkpoints that are not kept any more, and return their folders. Raises OSError."""
    losses = {step: _loss(folder) for step, folder in folders.items()}
    pinned = [step for step, folder in folders.items() if (folder / CHECKPOINT_PINNED).exists()]
    gone = [folders[step] for step in superseded(losses, keep, keep_best, pinned)]
    for before in gone:
        after = before.with_name(before.name + _REMOVED)
        shutil.rmtree(after, ignore_errors=True)
        before.rename(after)
        shutil.rmtree(after, ignore_errors=True)
    return gone


def clear_leftovers(directory: Path) -> None:
    """Remove what killed saves and removals have left in the directory of the checkpoints."""
    for pattern in ("*.orbax-checkpoint-tmp*", f"*{_REMOVED}"):
        for leftover in directory.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def _loss(folder: Path) -> float | None:
    """Return the validation loss of a checkpoint; None if it has none, or none that can be read."""
    try:
        loss = read_loss(folder / CHECKPOINT_LOSS)
        return float(loss) if isinstance(loss, (int, float)) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def read_loss(path: Path) -> Any:
    """Return the loss in a file of orbax's. Raises OSError, ValueError, KeyError, TypeError, RecursionError."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")  # reading from a pipe may never end
    return json.loads(path.read_bytes())["loss"]
