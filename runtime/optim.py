"""Optimizers and learning-rate schedules from the config."""

from __future__ import annotations

from typing import Any

import jax
import optax

from . import plugins
from .config import AdamW, Config, Plugin, Schedule


def make_schedule(schedule: Schedule, peak: float, steps: int) -> optax.Schedule:
    """Learning rate by number of steps done: linear warm-up from 0 to `peak`, then the curve to `schedule.final`."""
    decay_steps = steps - schedule.warmup_steps
    if schedule.name == "cosine":
        curve = optax.cosine_decay_schedule(peak, decay_steps, alpha=schedule.final / peak)
    elif schedule.name == "linear":
        curve = optax.linear_schedule(peak, schedule.final, decay_steps)
    else:
        curve = optax.constant_schedule(peak)
    if schedule.warmup_steps == 0:
        return curve
    # Step 0 already learns: the first of w warm-up steps has the rate peak / w.
    warmup = optax.linear_schedule(peak / schedule.warmup_steps, peak, schedule.warmup_steps - 1)
    return optax.join_schedules([warmup, curve], [schedule.warmup_steps])


def decay_mask(params: Any) -> Any:
    """True for the leaves that weight decay applies to: kernels; not biases, LayerNorm scales or embeddings."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


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
