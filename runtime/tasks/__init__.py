"""Make the task that a job names."""

from __future__ import annotations

from importlib import import_module

from .. import plugins
from ..config import Config
from ..data.base import Dataset
from ..device_memory import gpu_memory
from ..devices import Devices
from .base import Task

_CLASSES = {
    "language_model": "LanguageModel",
    "dpo": "DPO",
    "classification": "Classification",
    "regression": "Regression",
    "logistic_regression": "LogisticRegression",
}
"""Class of each built-in task, in the module of the same name."""


def make_task(config: Config, data: Dataset, pod: Devices | None = None) -> Task:
    """Make the job's task for the devices of `pod`, or without it for those of this process.

    A user's task is called as `attribute(config, data)`, and returns a Task, or an object with a step of its own.
    """
    task = _task(config, data)
    task.memory = gpu_memory(pod or Devices.here())
    return task


def _task(config: Config, data: Dataset) -> Task:
    if ":" in config.task:
        chosen = plugins.call(config.task, "task", config=config, data=data)
        if isinstance(chosen, Task):
            words = ["step"] if chosen.loss_takes_step else []
            plugins.check_call(chosen.loss, config.task, "task", ["params", "batch", "key"], words, part="loss")
            return chosen
        if getattr(chosen, "step", None) is None:
            plugins.refuse(
                config.task,
                "task",
                f"returns {plugins.short(chosen)}, expected podrun.runtime.tasks.base.Task, or an object with `init` and "
                "`step`",
            )
        from .own_step import OwnStep

        return OwnStep(config, data, chosen)
    kind: type[Task] = getattr(import_module(f".{config.task}", __name__), _CLASSES[config.task])
    return kind(config, data)
