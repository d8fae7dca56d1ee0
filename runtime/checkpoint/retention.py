"""Decide which checkpoints to keep, and remove the others. A removal that is interrupted leaves no partial checkpoint."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from ..contract import CHECKPOINT_LOSS, CHECKPOINT_PINNED

_REMOVED = ".podrun-removed"
"""Suffix of a checkpoint that is being removed."""


def superseded(
    losses: Mapping[int, float | None], keep: int, keep_best: int = 0, pinned: Collection[int] = ()
) -> list[int]:
    """Return the steps of the checkpoints to remove, the oldest first. Pure function.

    Args:
        losses: validation loss of each complete checkpoint by step; None if unknown.
        keep: number of the newest checkpoints to keep.
        keep_best: number of checkpoints with the lowest loss to keep in addition; of equal losses the newer one.
        pinned: steps that the user has pinned.
    """
    steps = sorted(losses)
    kept = {*steps[-keep:], *_by_loss(losses)[:keep_best], *pinned}
    return [step for step in steps if step not in kept]


def best_step(folders: Mapping[int, Path]) -> int | None:
    """Return the step of the checkpoint with the lowest validation loss; None if no loss is known."""
    return next(iter(_by_loss({step: _loss(folder) for step, folder in folders.items()})), None)


def _by_loss(losses: Mapping[int, float | None]) -> list[int]:
    """Return the steps whose loss is known, the lowest loss first; of equal losses the newer one."""
    known = {step: loss for step, loss in losses.items() if loss is not None and math.isfinite(loss)}
    return sorted(known, key=lambda step: (known[step], -step))


def remove_superseded(folders: Mapping[int, Path], keep: int, keep_best: int) -> list[Path]:
    """Remove superseded checkpoints, and return the paths that they had. Raises OSError."""
    losses = {step: _loss(folder) for step, folder in folders.items()}
    pinned = [step for step, folder in folders.items() if (folder / CHECKPOINT_PINNED).exists()]
    gone = [folders[step] for step in superseded(losses, keep, keep_best, pinned)]
    for before in gone:
        after = before.with_name(before.name + _REMOVED)
        shutil.rmtree(after, ignore_errors=True)
        before.rename(after)
        shutil.rmtree(after, ignore_errors=True)
    return gone


def remove_incomplete(directory: Path) -> None:
    """Remove the folders that interrupted saves and removals have left."""
    for pattern in ("*.orbax-checkpoint-tmp*", f"*{_REMOVED}"):
        for leftover in directory.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def _loss(folder: Path) -> float | None:
    """Return the validation loss of a checkpoint; None if it has none or it cannot be read."""
    path = folder / CHECKPOINT_LOSS
    try:
        loss = json.loads(path.read_bytes())["loss"] if path.is_file() else None  # reading from a pipe may never end
        return float(loss) if isinstance(loss, (int, float)) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
