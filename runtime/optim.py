"""Make optimizers and learning-rate schedules from the config."""

from __future__ import annotations

from typing import Any

import jax
import optax
import optax.contrib

from . import plugins
from .config import Config, Plugin
from .config.optimizer import LBFGS, SGD, Adafactor, Adam, AdamW, FirstOrder, Lion, Muon, Schedule


def make_schedule(schedule: Schedule, peak: float, steps: int) -> optax.Schedule:
    """Return the learning rate by number of steps done.

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
    """Return a tree of bool, True where weight decay applies: to kernels; not biases, LayerNorm scales or embeddings."""
    return jax.tree_util.tree_map_with_path(lambda path, _: getattr(path[-1], "key", None) == "kernel", params)


def make_optimizer(config: Config, steps: int) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Return the optimizer for a job of `steps` steps, and the learning rate by step for the metrics.

    A user's optimizer is called as `attribute(options, steps) -> (GradientTransformation, Schedule)`. Raises UserError if it
    is anything else.
    """
    section = config.optimizer
    if isinstance(section, Plugin):
        return _users_optimizer(section, steps)
    if isinstance(section, LBFGS):
        return _lbfgs(section), optax.constant_schedule(section.step_size or 1.0)
    schedule = make_schedule(config.schedule, section.learning_rate, steps)
    transformation = _first_order(section, schedule)
    if section.clip_norm is not None:
        transformation = optax.chain(optax.clip_by_global_norm(section.clip_norm), transformation)
    return transformation, schedule


def _users_optimizer(section: Plugin, steps: int) -> tuple[optax.GradientTransformation, optax.Schedule]:
    both = plugins.call(section.name, "optimizer.name", options=section.options, steps=steps)
    plugins.expect(both, tuple, section.name, "optimizer.name")
    if len(both) != 2 or not isinstance(both[0], optax.GradientTransformation) or not callable(both[1]):
        kinds = ", ".join(type(part).__name__ for part in both)
        plugins.refuse(
            section.name, "optimizer.name", f"returns ({kinds}), expected (GradientTransformation, schedule)"
        )
    transformation, schedule = both
    return transformation, schedule


def _first_order(section: FirstOrder, schedule: optax.Schedule) -> optax.GradientTransformation:
    match section:
        case AdamW():
            return optax.adamw(
                schedule, section.b1, section.b2, section.eps, weight_decay=section.weight_decay, mask=decay_mask
            )
        case Adam():
            return optax.adam(schedule, section.b1, section.b2, section.eps)
        case SGD():
            return optax.sgd(schedule, section.momentum or None, section.nesterov)
        case Lion():
            return optax.lion(schedule, section.b1, section.b2, weight_decay=section.weight_decay, mask=decay_mask)
        case Adafactor():
            return optax.adafactor(schedule, momentum=section.momentum)
        case Muon():
            return optax.contrib.muon(
                schedule,
                beta=section.momentum,
                weight_decay=section.weight_decay,
                adam_learning_rate=lambda step: schedule(step) * section.adam_learning_rate / section.learning_rate,
                muon_weight_dimension_numbers=_hidden_matrices,
            )
    raise TypeError(section)


def _hidden_matrices(params: Any) -> Any:
    """Return muon's dimensions of matrices between hidden layers, None for other leaves: embeddings are tables."""
    numbers = optax.contrib.MuonDimensionNumbers()
    return jax.tree.map(lambda leaf, decays: numbers if decays and leaf.ndim == 2 else None, params, decay_mask(params))


def _lbfgs(section: LBFGS) -> optax.GradientTransformationExtraArgs:
    """Return L-BFGS. Its line searches leave their last loss and gradient in the state, where the next step begins."""
    search = None
    if section.line_search == "zoom":
        # The first trial is the whole step, as the curvature proposes it (Nocedal & Wright 2006, section 3.5).
        search = optax.scale_by_zoom_linesearch(section.max_evaluations, initial_guess_strategy="one")
    elif section.line_search == "backtracking":
        search = optax.scale_by_backtracking_linesearch(section.max_evaluations, store_grad=True)
    return optax.lbfgs(section.step_size, section.memory, linesearch=search)
