"""Collectives for the strategies that trace the program of one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from ..state import Batch, Params
from .arrays import is_float
from .base import Objective

Axis = str | tuple[str, ...]


def average(tree: Any, axis: Axis) -> Any:
    """Return the mean over the devices of `axis` of every array of `tree`, the same on all of them."""
    return _reduce(jax.lax.pmean, tree, axis)


def average_step(results: tuple[Any, Any], axis: Axis) -> tuple[Any, Any]:
    """Return the means of what `Strategy.gradients` gives on each device: of the model's state as `arrays.merged` does."""
    means, state = results
    leaves, structure = jax.tree.flatten(state)
    means, floats = average((means, [x for x in leaves if is_float(x)]), axis)
    averaged = iter(floats)
    return means, jax.tree.unflatten(structure, [next(averaged) if is_float(x) else _largest(x, axis) for x in leaves])


def _largest(x: jax.Array, axis: Axis) -> jax.Array:
    largest: jax.Array = jax.lax.pmax(x.astype(jnp.int32), axis) if x.dtype == bool else jax.lax.pmax(x, axis)
    return largest.astype(x.dtype)


def total(tree: Any, axis: Axis) -> Any:
    """Return the sum over the devices of `axis` of every array of `tree`, the same on all of them."""
    return _reduce(jax.lax.psum, tree, axis)


def gathered(batch: Batch, axis: Axis) -> Batch:
    """Return the global batch, [B, ...], on every device, from the share of each, [B / shares, ...]."""
    return {name: jax.lax.all_gather(x, axis, tiled=True) for name, x in batch.items()}


def _reduce(collective: Any, tree: Any, axis: Axis) -> Any:
    """Reduce one vector on CPUs, which wait for each other at every buffer. Elsewhere XLA combines the buffers.

    A device that is alone waits for nobody, and compiles sooner without the vector.
    """
    leaves, structure = jax.tree.flatten(tree)
    if jax.default_backend() != "cpu" or jax.device_count() == 1 or len(leaves) < 2:
        return collective(tree, axis)
    if sum(x.size for x in leaves) >= _UNCOUNTED:
        return collective(tree, axis)
    dtype = jnp.result_type(*leaves)
    zero = jnp.minimum(jax.lax.axis_index(axis), 0)  # XLA cannot know it, so it computes no offset in advance
    groups = _groups(leaves)
    with _apart():
        typed = [[leaves[number].astype(dtype) for number in group] for group in groups]
        vector = _joined([*(_joined(same) if len(same) > 1 else same[0] for same in typed), zero.astype(dtype)])
    reduced = collective(vector, axis)
    start = reduced[-1].astype(jnp.int32)
    starts: dict[int, list[jax.Array]] = {}  # by the size of arrays: where those of a group are in it
    offset, parts = start, leaves.copy()
    for group in groups:
        size = leaves[group[0]].size
        whole, places = reduced, [offset]
        with _apart():
            if len(group) > 1:
                whole, places = _cut(reduced, offset, size * len(group)), starts.setdefault(size, [start])
            while len(places) < len(group):
                places.append(_after(places[-1], size))
            offset = _after(offset, size * len(group))
        for number, place in zip(group, places, strict=False):
            part = jax.lax.dynamic_slice(whole, (place,), (size,))  # may be fused with what it is for: no copy
            parts[number] = part.reshape(leaves[number].shape).astype(leaves[number].dtype)
    return jax.tree.unflatten(structure, parts)


_UNCOUNTED = 2**31
"""A number of elements that int32 cannot count."""

_SMALL, _TOGETHER = 1 << 14, 64
"""Size, in elements, below which arrays of one shape are joined with each other first, and how many at once.

XLA's time grows with the square of the number of arrays in one join. The elements of a group are copied twice more, which
would take time for large arrays.
"""


def _groups(leaves: list[jax.Array]) -> list[list[int]]:
    """Return the indices of all arrays in groups: up to `_TOGETHER` small arrays of one shape and type, or one array."""
    if len(leaves) <= _TOGETHER:
        return [[number] for number in range(len(leaves))]
    alike: dict[Any, list[int]] = {}
    for number, x in enumerate(leaves):
        alike.setdefault((x.shape, x.dtype) if x.size < _SMALL else number, []).append(number)
    return [same[first : first + _TOGETHER] for same in alike.values() for first in range(0, len(same), _TOGETHER)]


def _apart() -> Any:
    """Let XLA compile the calls within as functions of their own.

    Otherwise XLA for CPUs compiles an operation anew for every place in the vector, which took 10 to 30 ms for each
    parameter. And it fuses a `concatenate` with what comes before it, and then computes sums again for every element, which
    made steps 15 times as long (docs/performance.md).
    """
    return set_xla_metadata(inlineable="false")


@jax.jit
def _joined(leaves: list[jax.Array]) -> jax.Array:
    """Return all elements, one array after another."""
    return jnp.concatenate([x.ravel() for x in leaves])


@partial(jax.jit, static_argnums=2)
def _cut(vector: jax.Array, offset: jax.Array, size: int) -> jax.Array:
    """Return a copy of `size` elements from `offset`, int32[], on."""
    return jax.lax.dynamic_slice(vector, (offset,), (size,))


@partial(jax.jit, static_argnums=1)
def _after(offset: jax.Array, size: int) -> jax.Array:
    """Return the int32[] after `size` elements."""
    return offset + size


def averaged_objective(
    loss: Callable[[Params], jax.Array], axis: Axis, mark_varying: Callable[[Params], Params] = lambda p: p
) -> Objective:
    """Return the mean of each device's `loss`, float32[], with its gradient averaged as well.

    JAX would take the gradient of a `pmean` under pmap to be the local one. A line search that follows it takes different
    branches on different devices, and they wait for each other forever.
    """

    @jax.custom_vjp
    def objective(params: Params) -> jax.Array:
        value: jax.Array = average(loss(mark_varying(params)), axis)
        return value

    def forward(params: Params) -> tuple[jax.Array, Params]:
        value: tuple[jax.Array, Params] = average(jax.value_and_grad(loss)(mark_varying(params)), axis)
        return value

    def backward(gradient: Params, cotangent: jax.Array) -> tuple[Params]:
        return (jax.tree.map(lambda g: cotangent * g, gradient),)

    objective.defvjp(forward, backward)
    return objective
