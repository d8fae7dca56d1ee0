"""Make the task that a job names."""

from __future__ import annotations

from importlib import import_module

from .. import plugins
from ..config import Config
from ..data.base import Dataset
from .base import Task

_CLASSES = {
    "language_model": "LanguageModel",
    "dpo": "DPO",
    "classification": "Classification",
    "regression": "Regression",
    "logistic_regression": "LogisticRegression",
}
"""Class of each built-in task, in the module of the same name."""


def make_task(config: Config, data: Dataset) -> Task:
    """Make the job's task. A user's task is called as `attribute(config, data) -> Task`."""
    if ":" in config.task:
        chosen = plugins.call(config.task, "task", config=config, data=data)
        task: Task = plugins.expect(chosen, Task, config.task, "task")
        return task
    kind: type[Task] = getattr(import_module(f".{config.task}", __name__), _CLASSES[config.task])
    return kind(config, data)
