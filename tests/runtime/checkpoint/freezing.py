"""Checkpoints of a job that trains one of two arrays, which tests save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from podrun.runtime.checkpoint.store import Checkpoints, Restored
from podrun.runtime.state import StateDict

from .saving import FINGERPRINT, job, state

JOB = job(trainable="layer.*")
BASE = np.linspace(0, 1, 200_000, dtype=np.float32)


def with_base(step: int, dtype: Any = np.float32) -> StateDict:
    """A state whose array `layer` says which step it is of, and whose array `base` is frozen."""
    whole = state(step)
    whole["params"]["base"] = {"kernel": BASE.astype(dtype), "none": {}}
    return whole


def save(checkpoints: Checkpoints, step: int, dtype: Any = np.float32) -> None:
    checkpoints.save(step, with_base(step, dtype), step * 8, JOB, FINGERPRINT, None)
    assert checkpoints.completed(wait=True) == step


def load(checkpoints: Checkpoints, step: int, dtype: Any = np.float32) -> Restored:
    restored = checkpoints.load(step, checkpoints.target(lambda: with_base(0, dtype), JOB, FINGERPRINT))
    assert restored.state["params"]["base"]["kernel"].tobytes() == BASE.astype(dtype).tobytes()
    assert (restored.state["params"]["layer"]["kernel"] == step).all()
    return restored


def occupied(folder: Path) -> int:
    """Bytes on the disk, of each file once."""
    inodes = {(status := path.lstat()).st_ino: status.st_blocks * 512 for path in folder.rglob("*") if path.is_file()}
    return sum(inodes.values())


def largest(folder: Path, step: int) -> Path:
    files = [path for path in (folder / "checkpoints" / str(step)).rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)
