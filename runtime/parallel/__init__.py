"""Parallelism strategies, by the name in the config."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .. import plugins
from ..config import Config, Plugin

if TYPE_CHECKING:
    import optax

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
    config: Config, task: Task, optimizer: optax.GradientTransformation, schedule: optax.Schedule
) -> Strategy:
    """Return the job's strategy. A user's is a subclass of `podrun.runtime.parallel.base.Strategy`."""
    section = config.parallel
    if isinstance(section, Plugin):
        from .base import Strategy

        arguments = {"config": config, "task": task, "optimizer": optimizer, "schedule": schedule}
        chosen = plugins.call(section.name, "parallel", **arguments)
        strategy: Strategy = plugins.expect(chosen, Strategy, section.name, "parallel")
        return strategy
    kind: type[Strategy] = getattr(import_module(f".{section.name}", __name__), _CLASSES[section.name])
    return kind(config, task, optimizer, schedule)
