"""Collectives for the strategies that trace the program of one device: pmap, shard_map and ensemble."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from ..devices import Devices
from ..state import Batch, Params, TrainState
from .arrays import is_float
from .base import Objective, Results, Strategy
from .metrics import StepMetrics

Axis = str | tuple[str, ...]


def average(tree: Any, axis: Axis, pod: Devices) -> Any:
    """Return the mean of every array of `tree` over the devices of `pod`, along `axis`. All devices get it."""
    return _reduce(jax.lax.pmean, tree, axis, pod)


def average_results(results: tuple[Any, Any], axis: Axis, pod: Devices, dtype: str = "float32") -> tuple[Any, Any]:
    """Average the results of `Strategy.gradients` over the devices of `axis`; the gradients in `dtype`.

    The model's state is merged as by `arrays.merge_model_states`: the mean of floats, the maximum of integers.
    """
    (grads, metrics), state = results
    leaves, structure = jax.tree.flatten(state)
    rest = (metrics, [x for x in leaves if is_float(x)])
    if dtype == "float32":  # one collective for all
        grads, (metrics, floats) = average((grads, rest), axis, pod)
    else:
        narrow = average(jax.tree.map(lambda x: x.astype(dtype) if is_float(x) else x, grads), axis, pod)
        grads = jax.tree.map(lambda x, like: x.astype(like.dtype), narrow, grads)
        metrics, floats = average(rest, axis, pod)
    averaged = iter(floats)
    return (grads, metrics), jax.tree.unflatten(
        structure, [next(averaged) if is_float(x) else _largest(x, axis) for x in leaves]
    )


def _largest(x: jax.Array, axis: Axis) -> jax.Array:
    largest: jax.Array = jax.lax.pmax(x.astype(jnp.int32), axis) if x.dtype == bool else jax.lax.pmax(x, axis)
    return largest.astype(x.dtype)


def total(tree: Any, axis: Axis, pod: Devices) -> Any:
    """Return the sum of every array of `tree` over the devices of `pod`, along `axis`. All devices get it."""
    return _reduce(jax.lax.psum, tree, axis, pod)


def all_gather(batch: Batch, axis: Axis) -> Batch:
    """Gather the shares of all devices, [B / shares, ...]; each device gets the global batch, [B, ...]."""
    return {name: jax.lax.all_gather(x, axis, tiled=True) for name, x in batch.items()}


def _reduce(collective: Any, tree: Any, axis: Axis, pod: Devices) -> Any:
    """Reduce all arrays of `tree` by one collective.

    On CPU, devices synchronize for every buffer of a collective, so the arrays are concatenated to one vector before it and
    sliced out after it. On other platforms XLA combines the buffers itself. A single device needs no vector, and compiles
    faster without.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not pod.is_cpu or pod.count == 1 or len(leaves) < 2:
        return collective(tree, axis)
    if sum(x.size for x in leaves) >= _INT32_LIMIT:
        return collective(tree, axis)
    dtype = jnp.result_type(*leaves)
    zero = jnp.minimum(jax.lax.axis_index(axis), 0)  # XLA cannot fold it, so that offsets stay variables
    groups = _groups(leaves)
    with _not_inlined():
        typed = [[leaves[number].astype(dtype) for number in group] for group in groups]
        vector = _concatenate(
            [*(_concatenate(same) if len(same) > 1 else same[0] for same in typed), zero.astype(dtype)]
        )
    reduced = collective(vector, axis)
    start = reduced[-1].astype(jnp.int32)
    starts: dict[int, list[jax.Array]] = {}  # by array size: offsets of the arrays within a group
    offset, parts = start, leaves.copy()
    for group in groups:
        size = leaves[group[0]].size
        whole, places = reduced, [offset]
        with _not_inlined():
            if len(group) > 1:
                whole, places = _slice(reduced, offset, size * len(group)), starts.setdefault(size, [start])
            while len(places) < len(group):
                places.append(_advance(places[-1], size))
            offset = _advance(offset, size * len(group))
        for number, place in zip(group, places, strict=False):
            part = jax.lax.dynamic_slice(whole, (place,), (size,))  # inlined: XLA fuses it with its use, without a copy
            parts[number] = part.reshape(leaves[number].shape).astype(leaves[number].dtype)
    return jax.tree.unflatten(structure, parts)


_INT32_LIMIT = 2**31
"""Vectors of this many elements cannot be indexed by int32."""

_SMALL_ARRAY, _GROUP_SIZE = 1 << 14, 64
"""Arrays with fewer elements, of one shape, are concatenated in groups of this many before the vector is.

Compile time grows with the square of the number of arrays that are concatenated at once. Groups cost two more copies, which
large arrays are spared.
"""


def _groups(leaves: list[jax.Array]) -> list[list[int]]:
    """Return the indices of `leaves` in groups: up to `_GROUP_SIZE` small arrays of one shape and dtype, or one array."""
    if len(leaves) <= _GROUP_SIZE:
        return [[number] for number in range(len(leaves))]
    alike: dict[Any, list[int]] = {}
    for number, x in enumerate(leaves):
        alike.setdefault((x.shape, x.dtype) if x.size < _SMALL_ARRAY else number, []).append(number)
    return [same[first : first + _GROUP_SIZE] for same in alike.values() for first in range(0, len(same), _GROUP_SIZE)]


def _not_inlined() -> Any:
    """Return a context in which XLA does not inline jitted calls.

    Inlined, XLA for CPUs compiles each slice separately, 10 to 30 ms for each parameter. It also fuses a `concatenate` with
    the reductions before it and computes them again for every element, which made steps 15 times as long
    (docs/performance.md).
    """
    return set_xla_metadata(inlineable="false")


@jax.jit
def _concatenate(leaves: list[jax.Array]) -> jax.Array:
    """Concatenate the flattened arrays."""
    return jnp.concatenate([x.ravel() for x in leaves])


@partial(jax.jit, static_argnums=2)
def _slice(vector: jax.Array, offset: jax.Array, size: int) -> jax.Array:
    """Return a copy of the `size` elements that start at `offset`, int32[]."""
    return jax.lax.dynamic_slice(vector, (offset,), (size,))


@partial(jax.jit, static_argnums=1)
def _advance(offset: jax.Array, size: int) -> jax.Array:
    """Return the offset, int32[], behind `size` elements."""
    return offset + size


def averaged_objective(
    loss: Callable[[Params], jax.Array],
    axis: Axis,
    pod: Devices,
    mark_varying: Callable[[Params], Params] = lambda p: p,
) -> Objective:
    """Return a function that averages the devices' losses, float32[], and whose gradient is the average of their gradients.

    Under pmap, JAX differentiates a `pmean` to the local gradient. With local gradients a line search takes different
    branches on different devices, which then deadlock.
    """

    @jax.custom_vjp
    def objective(params: Params) -> jax.Array:
        value: jax.Array = average(loss(mark_varying(params)), axis, pod)
        return value

    def forward(params: Params) -> tuple[jax.Array, Params]:
        value: tuple[jax.Array, Params] = average(jax.value_and_grad(loss)(mark_varying(params)), axis, pod)
        return value

    def backward(gradient: Params, cotangent: jax.Array) -> tuple[Params]:
        return (jax.tree.map(lambda g: cotangent * g, gradient),)

    objective.defvjp(forward, backward)
    return objective


class DeviceStep:
    """A training step as the program of one device, which computes its share of the batch and averages the results.

    Args:
        strategy: computes loss, gradients and update.
        axis: the axis over the devices.
        mark_varying: marks arrays as varying over the devices, if JAX tracks which ones do.
    """

    def __init__(self, strategy: Strategy, axis: Axis, mark_varying: Callable[[Any], Any] = lambda tree: tree) -> None:
        self._strategy = strategy
        self._axis = axis
        self._mark_varying = mark_varying

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """Return the state after the step, and its metrics, the same on all devices."""
        strategy = self._strategy
        batch, key = self._examples(state.step, batch)
        model_state = self._mark_varying(strategy.inputs(state))
        objective = averaged_objective(
            lambda params: strategy.loss(params, model_state, batch, key)[0],
            self._axis,
            strategy.pod,
            self._mark_varying,
        )
        (grads, metrics), after = strategy.step_gradients(
            state, objective, lambda: self._average_gradients(state, batch, key)
        )
        return strategy.update(state, grads, metrics, objective, after)

    def results(self, state: TrainState, batch: Batch) -> Results:
        """Return the gradients and metrics of the global batch, for `Strategy.update_outside`."""
        return self._average_gradients(state, *self._examples(state.step, batch))

    def _examples(self, step: jax.Array, batch: Batch) -> tuple[Batch, jax.Array]:
        """Return the examples whose loss this device computes, and the key for their dropout."""
        if self._strategy.task.whole_batch:
            return all_gather(batch, self._axis), self._strategy.step_key(step, 0)
        return batch, self._strategy.step_key(step, jax.lax.axis_index(self._axis))

    def _average_gradients(self, state: TrainState, batch: Batch, key: jax.Array) -> Results:
        params, model_state = self._mark_varying((state.params, self._strategy.inputs(state)))
        return average_results(
            self._strategy.gradients(params, model_state, batch, key),
            self._axis,
            self._strategy.pod,
            self._strategy.config.precision.gradients,
        )
