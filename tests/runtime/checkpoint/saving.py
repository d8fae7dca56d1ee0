"""Checkpoints of small states, which tests save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint, Config
from podrun.runtime.state import StateDict
from podrun.runtime.storage.base import Storage
from podrun.runtime.storage.shared_folder import SHARED_FOLDER

FINGERPRINT = b"the data"


def job(**keys: Any) -> Config:
    return Config.model_validate({"steps": 100, "batch_size": 8, "sample": {"tokens": 0}, **keys})


def state(step: int, size: int = 3) -> StateDict:
    """A small state in which every number says which step it is of."""
    params = {"layer": {"kernel": np.full((size, 2), step, np.float32)}}
    return {"step": np.array(step, np.int32), "params": params, "opt_state": {"0": {}, "1": {"count": np.array(step)}}}


@contextmanager
def opened(
    folder: Path, in_parts: bool = False, storage: Storage = SHARED_FOLDER, **keys: Any
) -> Iterator[Checkpoints]:
    checkpoints = Checkpoints(folder / "checkpoints", Checkpoint(**keys), in_parts, storage=storage)
    try:
        yield checkpoints
    finally:
        checkpoints.close()


def save(checkpoints: Checkpoints, step: int, loss: float | None = None, config: Config | None = None) -> None:
    """Saves and waits."""
    checkpoints.save(step, state(step), step * 8, config or job(), FINGERPRINT, {"loss": loss})
    assert checkpoints.completed(wait=True) == step
