"""Make the optimizer and the learning-rate schedule of a job."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from . import plugins
from .config import Config, Plugin
from .config.optimizer import (
    LBFGS,
    SGD,
    WSD,
    Adafactor,
    Adam,
    AdamW,
    Constant,
    Cosine,
    FirstOrder,
    Linear,
    Lion,
    Muon,
    OptimizerSection,
    Schedule,
    SchedulePlugin,
)
from .contract import UserError
from .state import select
from .trainable import trained
from .weights import Weight, weights
from .wording import first_names

Decaying = AdamW | Lion | Muon
"""Sections of the optimizers with weight decay."""

_SHOWN = 4


def make_schedule(schedule: Schedule, peak: float, steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the number of steps done.

    The rate rises linearly over `warmup_steps` steps, from `peak / warmup_steps` in the first step to `peak`, then follows
    the curve to `schedule.final` in the last step, number `steps - 1`.

    Raises:
        UserError: the schedule of a user is not a function of the step that returns a number.
    """
    if isinstance(schedule, Plugin):
        return _users_schedule(schedule, peak, steps)
    warmup = max(1, schedule.warmup_steps)
    after = max(1, steps - warmup)
    match schedule:
        case Cosine():
            curve = optax.cosine_decay_schedule(peak, after, alpha=schedule.final / peak)
        case Linear():
            curve = optax.linear_schedule(peak, schedule.final, after)
        case WSD():
            decay = min(after, schedule.decay_steps or math.ceil(steps / 10))
            curve = optax.linear_schedule(peak, schedule.final, decay, transition_begin=after - decay)
        case Constant():
            curve = optax.constant_schedule(peak)
    if warmup == 1:
        return curve
    return optax.join_schedules([optax.linear_schedule(peak / warmup, peak, warmup - 1), curve], [warmup - 1])


def _users_schedule(schedule: SchedulePlugin, peak: float, steps: int) -> optax.Schedule:
    rate = plugins.call(schedule.name, "schedule.name", options=schedule.options, peak=peak, steps=steps)
    plugins.check_call(rate, schedule.name, "schedule.name", ["step"], part="result")
    try:
        shape = jax.eval_shape(
            lambda step: jnp.asarray(rate(step), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
        ).shape
    except Exception as error:
        problem = f"its result, called with a step as JAX traces it, fails with {type(error).__name__}: {error}"
        plugins.refuse(schedule.name, "schedule.name", f"{problem}; use jax.numpy in it, and no `if` on the step")
    if shape:
        plugins.refuse(
            schedule.name, "schedule.name", f"its result returns an array of shape {shape}, expected a number"
        )
    return lambda step: jnp.asarray(rate(step), jnp.float32)


def decay_mask(section: Decaying, params: Any, stacked: Sequence[str] = ()) -> Any:
    """Return a tree of bool: True for parameters with weight decay, by the regex `decay` or else by their role.

    `stacked` has the names of the task's parameters that are stacked over layers.

    Raises UserError if the decay is above 0 but applies to no parameter.
    """
    every = weights(params, stacked)
    mask = jax.tree.map(lambda weight: _is_decayed(section, weight), every)
    if section.weight_decay > 0 and not any(jax.tree.leaves(mask)):
        names = [f"{weight.name} {list(weight.shape)}" for weight in jax.tree.leaves(every)]
        shown = first_names(names, _SHOWN)
        start = f"optimizer.weight_decay is {section.weight_decay:g}, but "
        if section.decay is not None:
            raise UserError(
                f"{start}optimizer.decay {section.decay!r} matches no parameter's full name; the names are {shown}; "
                f"'.*{section.decay}.*' matches anywhere in a name, and null decays all but biases and norms"
            )
        raise UserError(
            f"{start}it would decay nothing: no parameter has two or more dimensions, except biases and norms; the names are "
            f"{shown}; set optimizer.weight_decay=0, or select parameters with optimizer.decay=REGEX"
        )
    return mask


def updates_of(config: Config, params: Any, stacked: Sequence[str] = ()) -> list[str]:
    """Describe the update of each parameter, as `muon, decayed` or `frozen`; empty if all of them are treated alike."""
    mask = trained(params, config.trained_names)
    updates = _updates_of_trained(config.optimizer, select(params, mask), stacked)
    if config.trained_names is None:
        return updates
    rest = iter(updates or [""] * sum(jax.tree.leaves(mask)))
    return [next(rest) or "trained" if is_trained else "frozen" for is_trained in jax.tree.leaves(mask)]


def _updates_of_trained(section: OptimizerSection, params: Any, stacked: Sequence[str]) -> list[str]:
    if not isinstance(section, Decaying):
        return []
    every: list[Weight] = jax.tree.leaves(weights(params, stacked))
    by = [[_inner(weight)] if isinstance(section, Muon) else [] for weight in every]
    decayed = [["decayed"] * (section.weight_decay > 0 and _is_decayed(section, weight)) for weight in every]
    updates = [", ".join([*inner, *decay]) for inner, decay in zip(by, decayed, strict=True)]
    return updates if any(updates) else []


def _is_decayed(section: Decaying, weight: Weight) -> bool:
    if section.decay is None:
        return weight.is_decayed
    return re.fullmatch(section.decay, weight.name) is not None


def _inner(weight: Weight) -> str:
    """Return the part of Muon that updates a parameter: `muon` or `adam`."""
    return "muon" if weight.is_hidden_matrix else "adam"


def make_optimizer(
    config: Config, steps: int, stacked: Sequence[str] = ()
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Return the optimizer for a job of `steps` steps, and its learning rate by step, for the metrics.

    A user's optimizer is called as `attribute(options, steps) -> (GradientTransformation, Schedule)`. `stacked` has the
    names of the task's parameters that are stacked over layers.

    Raises:
        UserError: a user's optimizer returns something else.
    """
    section = config.optimizer
    if isinstance(section, Plugin):
        return _users_optimizer(section, steps)
    if isinstance(section, LBFGS):
        return _lbfgs(section), optax.constant_schedule(section.step_size or 1.0)
    schedule = make_schedule(config.schedule, section.learning_rate, steps)
    transformation = _first_order(section, schedule, stacked)
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


def _first_order(section: FirstOrder, schedule: optax.Schedule, stacked: Sequence[str]) -> optax.GradientTransformation:
    match section:
        case AdamW():
            mask = partial(decay_mask, section, stacked=stacked)
            return optax.adamw(
                schedule, section.b1, section.b2, section.eps, weight_decay=section.weight_decay, mask=mask
            )
        case Adam():
            return optax.adam(schedule, section.b1, section.b2, section.eps)
        case SGD():
            return optax.sgd(schedule, section.momentum or None, section.nesterov)
        case Lion():
            mask = partial(decay_mask, section, stacked=stacked)
            return optax.lion(schedule, section.b1, section.b2, weight_decay=section.weight_decay, mask=mask)
        case Adafactor():
            return optax.adafactor(schedule, momentum=section.momentum)
        case Muon():
            return _muon(section, schedule, stacked)
    raise TypeError(section)


def _muon(section: Muon, schedule: optax.Schedule, stacked: Sequence[str]) -> optax.GradientTransformation:
    """Return a variant of `optax.contrib.muon` with weight decay in both parts, and a separate learning rate for Adam."""

    def inner(params: Any) -> Any:
        labels = jax.tree.map(_inner, weights(params, stacked))
        if "muon" not in jax.tree.leaves(labels):
            raise UserError(
                "optimizer muon: the model has no matrix between hidden layers, so Adam would update everything; take "
                "optimizer adamw (Adam updates embeddings, heads, biases, norms, and arrays of more than two dimensions)"
            )
        return labels

    def axes(updates: Any) -> Any:
        return jax.tree.map(lambda leaf: optax.contrib.MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1), updates)

    def by_shape(updates: Any, _: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * max(1.0, leaf.shape[-1] / leaf.shape[-2]) ** 0.5, updates)

    def by_rate(updates: Any, params: Any) -> Any:
        ratio = {"muon": 1.0, "adam": section.adam_learning_rate / section.learning_rate}
        return jax.tree.map(lambda leaf, label: leaf * ratio[label], updates, inner(params))

    muon = optax.contrib.scale_by_muon(beta=section.momentum, weight_dimension_numbers=axes)
    return optax.chain(
        optax.partition(
            {"muon": optax.chain(muon, optax.stateless(by_shape)), "adam": optax.scale_by_adam(nesterov=True)}, inner
        ),
        optax.add_decayed_weights(section.weight_decay, partial(decay_mask, section, stacked=stacked)),
        optax.stateless(by_rate),
        optax.scale_by_learning_rate(schedule),
    )


def _lbfgs(section: LBFGS) -> optax.GradientTransformationExtraArgs:
    """Return L-BFGS. A line search stores its last loss and gradient in the state, with which the next step begins."""
    search = None
    if section.line_search == "zoom":
        # The first trial is the full quasi-Newton step (Nocedal & Wright 2006, section 3.5).
        search = optax.scale_by_zoom_linesearch(section.max_evaluations, initial_guess_strategy="one")
    elif section.line_search == "backtracking":
        search = optax.scale_by_backtracking_linesearch(section.max_evaluations, store_grad=True)
    return optax.lbfgs(section.step_size, section.memory, linesearch=search)
