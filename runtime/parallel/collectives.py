"""Communication written out, for the strategies that trace the program of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.flatten_util import ravel_pytree

from ..state import Params
from .base import Objective

Axis = str | tuple[str, ...]


def average(tree: Any, axis: Axis) -> Any:
    """The mean over the devices of `axis` of every array of `tree`, the same on all of them."""
    return _reduce(jax.lax.pmean, tree, axis)


def total(tree: Any, axis: Axis) -> Any:
    """The sum over the devices of `axis` of every array of `tree`, the same on all of them."""
    return _reduce(jax.lax.psum, tree, axis)


def _reduce(collective: Any, tree: Any, axis: Axis) -> Any:
    """One vector between CPU processes: gloo, which connects them, pays for every buffer. Elsewhere that is a copy more."""
    if jax.default_backend() != "cpu" or jax.process_count() == 1:
        return collective(tree, axis)
    flat, unravel = ravel_pytree(tree)
    return unravel(collective(flat, axis))


def averaged_objective(
    loss: Callable[[Params], jax.Array], axis: Axis, differing: Callable[[Params], Params] = lambda p: p
) -> Objective:
    """The mean of each device's `loss`, with its gradient averaged as well.

    JAX would take the gradient of a `pmean` under pmap to be the local one. A line search that follows it takes different
    branches on different devices, and they wait for each other for ever.
    """

    @jax.custom_vjp
    def objective(params: Params) -> jax.Array:
        value: jax.Array = average(loss(differing(params)), axis)
        return value

    def forward(params: Params) -> tuple[jax.Array, Params]:
        value: tuple[jax.Array, Params] = average(jax.value_and_grad(loss)(differing(params)), axis)
        return value

    def backward(gradient: Params, cotangent: jax.Array) -> tuple[Params]:
        return (jax.tree.map(lambda g: cotangent * g, gradient),)

    objective.defvjp(forward, backward)
    return objective
