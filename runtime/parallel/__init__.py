"""Parallelism strategies, found by their name in train.yaml."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .. import plugins
from ..config import Config, Plugin

if TYPE_CHECKING:
    import optax

    from ..devices import Devices
    from ..tasks.base import Task
    from .base import Strategy

_CLASSES = {
    "pmap": "Pmap",
    "jit": "Jit",
    "explicit": "Explicit",
    "shard_map": "ShardMap",
    "single": "Single",
    "ensemble": "Ensemble",
}


def make_strategy(
    config: Config,
    task: Task,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    pod: Devices | None = None,
) -> Strategy:
    """Return the job's strategy.

    Args:
        config: the whole job; `config.parallel` names the strategy, or a user's subclass of `base.Strategy`.
        task: the loss, its parameters and metrics.
        optimizer: an optax optimizer.
        schedule: learning rate by steps done.
        pod: the devices of the pod; None: those that are here. A user's strategy gets them only if they are given.

    Raises:
        UserError: a user's strategy takes no devices, but some are given; or the task has a step of its own, for which the
            strategy cannot be used.
    """
    section = config.parallel
    if task.has_step:
        from ..tasks.own_step import OwnStep
        from .own_step import OwnStepProgram

        assert isinstance(task, OwnStep)
        return OwnStepProgram(config, task, optimizer, schedule, pod)
    if isinstance(section, Plugin):
        from .base import Strategy

        arguments = {"config": config, "task": task, "optimizer": optimizer, "schedule": schedule}
        if pod is not None:
            arguments["pod"] = pod
        chosen = plugins.call(section.name, "parallel", **arguments)
        strategy: Strategy = plugins.expect(chosen, Strategy, section.name, "parallel")
        return strategy
    kind: type[Strategy] = getattr(import_module(f".{section.name}", __name__), _CLASSES[section.name])
    return kind(config, task, optimizer, schedule, pod)
