"""Decide which checkpoints to keep, and remove the others. A removal that is interrupted leaves no partial checkpoint."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..contract import CHECKPOINT_METRICS, CHECKPOINT_PINNED
from ..events import Metrics
from ..ranking import LOWEST_LOSS, Ranking
from .names import LINKS

_REMOVED = ".podrun-removed"
"""Suffix of a checkpoint that is being removed."""


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept, besides those that the user has pinned."""

    keep: int
    """Number of the newest ones."""
    keep_best: int = 0
    """Number of those with the best evaluations, in addition."""
    ranking: Ranking = LOWEST_LOSS
    """What makes an evaluation the best."""


def superseded(
    costs: Mapping[int, float | None], keep: int, keep_best: int = 0, pinned: Collection[int] = ()
) -> list[int]:
    """Return the steps of the checkpoints to remove, the oldest first. Pure function.

    Args:
        costs: for each complete checkpoint by step a number that is lower if its evaluation is better; None if unknown.
        keep: number of the newest checkpoints to keep.
        keep_best: number of checkpoints with the lowest cost to keep in addition; of equal ones the older one.
        pinned: steps that the user has pinned.
    """
    steps = sorted(costs)
    kept = {*steps[-keep:], *_by_cost(costs)[:keep_best], *pinned}
    return [step for step in steps if step not in kept]


def best_step(folders: Mapping[int, Path], ranking: Ranking) -> int | None:
    """Return the step of the checkpoint with the best evaluation; None if none is known."""
    return next(iter(_by_cost(_costs(folders, ranking))), None)


def _by_cost(costs: Mapping[int, float | None]) -> list[int]:
    """Return the steps whose cost is known, the lowest first; of equal ones the older one."""
    known = {step: cost for step, cost in costs.items() if cost is not None and math.isfinite(cost)}
    return sorted(known, key=lambda step: (known[step], step))


def _costs(folders: Mapping[int, Path], ranking: Ranking) -> dict[int, float | None]:
    return {step: ranking.cost(_metrics(folder)) for step, folder in folders.items()}


def remove_superseded(folders: Mapping[int, Path], retention: Retention) -> list[Path]:
    """Remove superseded checkpoints, and return the paths that they had. Raises OSError."""
    costs = _costs(folders, retention.ranking)
    pinned = [step for step, folder in folders.items() if (folder / CHECKPOINT_PINNED).exists()]
    gone = [folders[step] for step in superseded(costs, retention.keep, retention.keep_best, pinned)]
    for folder in gone:
        remove(folder)
    return gone


def remove(folder: Path) -> None:
    """Remove a checkpoint. Raises OSError if it cannot be renamed first."""
    after = folder.with_name(folder.name + _REMOVED)
    shutil.rmtree(after, ignore_errors=True)
    folder.rename(after)
    shutil.rmtree(after, ignore_errors=True)


def remove_incomplete(directory: Path) -> None:
    """Remove the folders that interrupted saves and removals have left."""
    for pattern in ("*.orbax-checkpoint-tmp*", f"*{_REMOVED}", LINKS):
        for leftover in directory.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def _metrics(folder: Path) -> Metrics:
    """Return the metrics of the evaluation in a checkpoint; empty if there was no evaluation or they cannot be read."""
    path = folder / CHECKPOINT_METRICS
    try:
        metrics = json.loads(path.read_bytes()) if path.is_file() else {}  # reading from a pipe may never end
    except (OSError, ValueError, RecursionError):
        return {}
    return metrics if isinstance(metrics, dict) else {}
