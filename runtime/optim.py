"""Optimizers and learning-rate schedules from the config."""

from __future__ import annotations

from typing import Any

import jax
import optax

from . import plugins
from .config import AdamW, Config, Plugin, Schedule


def make_schedule(schedule: Schedule, peak: float, steps: int) -> optax.Schedule:
    """Learning rate by number of steps done.

    It rises in `warmup_steps` equal parts, so that the first step learns already, and reaches `peak` in the last of them;
    from there the curve falls to `schedule.final` in the last step, number `steps - 1`.
    """
    warmup = max(1, schedule.warmup_steps)
    decay_steps = max(1, steps - warmup)
    if schedule.name == "cosine":
        curve = optax.cosine_decay_schedule(peak, decay_steps, alpha=schedule.final / peak)
    elif schedule.name == "linear":
        curve = optax.linear_schedule(peak, schedule.final, decay_steps)
    else:
        curve = optax.constant_schedule(peak)
    if warmup == 1:
        return curve
    return optax.join_schedules([optax.linear_schedule(peak / warmup, peak, warmup - 1), curve], [warmup - 1])


def decay_mask(params: Any) -> Any:
    """True for the leaves that weight decay applies to: kernels; not biases, LayerNorm scales or embeddings."""
    return jax.tree_util.tree_map_with_path(lambda path, _: getattr(path[-1], "key", None) == "kernel", params)


def make_optimizer(config: Config) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """The optimizer, and the learning rate by step for the metrics.

    A user's optimizer is called as `attribute(options, steps) -> (GradientTransformation, Schedule)`.
    """
    section = config.optimizer
    if isinstance(section, Plugin):
        transformation, schedule = plugins.load(section.name, "optimizer.name")(section.options, config.steps)
        return transformation, schedule
    return _adamw(section, make_schedule(config.schedule, section.learning_rate, config.steps))


def _adamw(section: AdamW, schedule: optax.Schedule) -> tuple[optax.GradientTransformation, optax.Schedule]:
    adamw = optax.adamw(
        schedule, b1=section.b1, b2=section.b2, eps=section.eps, weight_decay=section.weight_decay, mask=decay_mask
    )
    if section.clip_norm is None:
        return adamw, schedule
    return optax.chain(optax.clip_by_global_norm(section.clip_norm), adamw), schedule
