"""Shared by the tests of tasks and data whose examples are arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from podrun.runtime.config import Config
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Batch, Dataset, Examples

Array = np.ndarray[Any, Any]


def job(task: str, data: Any, **sections: Any) -> Config:
    """Make a job that needs nothing else to be valid."""
    values = {"task": task, "data": data, "steps": 2, "batch_size": 8, "optimizer": "adam", **sections}
    return Config.model_validate(values)


def load(task: str, name: str, path: Path | str | None = None, **keys: Any) -> Dataset:
    return load_dataset(job(task, {"name": name, **({} if path is None else {"path": str(path)}), **keys}))


def everything(examples: Examples) -> Batch:
    """All examples in their order."""
    indices = np.arange(examples.size)
    return examples.gather(indices, np.zeros_like(indices))
