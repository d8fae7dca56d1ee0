"""Tasks, by the name in the config."""

from __future__ import annotations

from .. import plugins
from ..config import Config
from ..data.base import Dataset
from .base import Task


def make_task(config: Config, data: Dataset) -> Task:
    """Return the job's task. A user's task is called as `attribute(config, data) -> Task`."""
    if ":" in config.task:
        task: Task = plugins.expect(
            plugins.call(config.task, "task", config=config, data=data), Task, config.task, "task"
        )
        return task
    if config.task == "classification":
        from .classification import Classification

        return Classification(config, data)
    if config.task == "regression":
        from .regression import Regression

        return Regression(config, data)
    if config.task == "logistic_regression":
        from .logistic_regression import LogisticRegression

        return LogisticRegression(config, data)
    from .language_model import LanguageModel

    return LanguageModel(config, data)
