"""Count the FLOPs of a training step. They depend on the task, not on the parallelism strategy.

Products of matrices and convolutions are counted in the traced program of loss and gradients, those in a loop as often as it
runs; a multiply-add counts as two. Nothing else is: the peak of a device is of products alone. What `jax.checkpoint` computes
again is counted separately, because it is no work: MFU says how well the devices do the work of a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from ..config import Config
from ..data.base import Examples
from ..data.pipeline import batch_shapes
from ..models.shares import of_one_share
from ..parallel.base import Strategy
from ..state import Batch, Params, merge, select, variables
from ..state import parts as divided
from ..tasks.base import Task
from ..trainable import trained
from .peak import peak_of, seconds_at_peak

_CHECKPOINT = {"prevent_cse", "policy"}
"""Parameters of the primitive of `jax.checkpoint`, whose name differs between versions."""


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of loss and gradients."""

    work: float
    repeated: float
    """FLOPs of recomputation by `jax.checkpoint`."""

    @property
    def total(self) -> float:
        return self.work + self.repeated

    def times(self, factor: float) -> StepFlops:
        return StepFlops(self.work * factor, self.repeated * factor)


def step_seconds_at_peak(
    config: Config, task: Task, strategy: Strategy, examples: Examples, batch_size: int
) -> float | None:
    """Return the seconds that a step takes at the peak FLOP/s of the devices; None if their peak is unknown."""
    kind = jax.devices()[0].device_kind
    if peak_of(kind) is None or config.optimizer.whole_set:  # L-BFGS, whose steps differ in length
        return None
    initial = strategy.initial.shapes
    params = variables(initial.params, initial.model_state)
    batch = batch_shapes(examples, batch_size)
    flops = step_flops(task, params, batch, names=config.trained_names).work * strategy.models
    return seconds_at_peak(flops, kind, strategy.devices, config.precision.compute)


def step_flops(task: Task, params: Params, batch: Batch, parts: int = 1, names: str | None = None) -> StepFlops:
    """Return the FLOPs of the loss over `batch` and of its gradients, which frozen parameters do not have.

    A task may repeat computation only in a batch that is large, so `repeated` depends on the parts. Attention counts as
    XLA's does, whatever kernel computes it.

    Args:
        task: the task, which has the loss.
        params: variables as `task.init` returns them, as arrays or as `jax.ShapeDtypeStruct`.
        batch: a global batch of arrays or `jax.ShapeDtypeStruct`, [B, ...] each.
        parts: number of equal parts that the batch is computed in, on several devices or one after another.
        names: regular expression of the parameters that are trained; None: all.
    """
    if task.has_step:
        return _of_own_step(task, params, batch)
    task = task.in_products()
    given, state = divided(params)
    batch = {name: jax.ShapeDtypeStruct((x.shape[0] // parts, *x.shape[1:]), x.dtype) for name, x in batch.items()}
    shapes = _shapes((given, state, batch, jax.eval_shape(lambda: jax.random.key(0))))
    part = select(shapes[0], trained(shapes[0], names))
    step = {"step": jnp.int32(0)} if task.loss_takes_step else {}
    traced = jax.make_jaxpr(of_one_share(lambda p, s, *rest: task.loss(variables(p, s), *rest, **step)))(*shapes)

    def gradients(program: Jaxpr) -> float:
        loss = jaxpr_as_fun(traced.replace(jaxpr=program))

        def first_and_rest(part: Any, params: Any, *rest: Any) -> Any:
            value, *others = loss(*jax.tree.leaves((merge(part, params), *rest)))
            return value, others

        return _count(jax.make_jaxpr(jax.value_and_grad(first_and_rest, has_aux=True))(part, *shapes).jaxpr)

    if not _has_checkpoint(traced.jaxpr):
        return StepFlops(gradients(traced.jaxpr), 0.0).times(parts)
    work = gradients(_keeping_all(traced.jaxpr))
    return StepFlops(work, max(0.0, gradients(traced.jaxpr) - work)).times(parts)


def _of_own_step(task: Task, state: Params, batch: Batch) -> StepFlops:
    """Return the FLOPs of a task's own step over a global batch, with those that `jax.checkpoint` computes again."""
    from ..tasks.own_step import OwnStep

    assert isinstance(task, OwnStep)
    shapes = _shapes((state, batch, jax.eval_shape(lambda: jax.random.key(0))))
    return StepFlops(_count(jax.make_jaxpr(task.step)(*shapes).jaxpr), 0.0)


def _has_checkpoint(program: Jaxpr) -> bool:
    return any(one.params.keys() >= _CHECKPOINT or any(map(_has_checkpoint, _inner(one))) for one in program.eqns)


def _keeping_all(program: Jaxpr) -> Jaxpr:
    """Return the program with every `jax.checkpoint`, at any depth, changed to save everything: nothing is recomputed."""

    def kept(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return value.replace(jaxpr=_keeping_all(value.jaxpr))
        return _keeping_all(value) if isinstance(value, Jaxpr) else value

    equations = []
    for equation in program.eqns:
        params = jax.tree.map(
            kept, dict(equation.params), is_leaf=lambda value: not isinstance(value, dict | tuple | list)
        )
        if params.keys() >= _CHECKPOINT:
            params["policy"] = jax.checkpoint_policies.everything_saveable
        equations.append(equation.replace(params=params))
    return program.replace(eqns=equations)


def _count(program: Jaxpr) -> float:
    total = 0.0
    for equation in program.eqns:
        name = equation.primitive.name
        if name in ("dot_general", "ragged_dot_general"):
            total += _product(equation)
        elif name == "conv_general_dilated":
            total += _convolution(equation)
        inner = [_count(one) for one in _inner(equation)]
        if equation.params.get("branches_platforms"):
            total += inner[-1]  # the default: what a kind of device does otherwise is not work
        elif inner:
            total += max(inner) if name == "cond" else _turns(equation) * sum(inner)
    return total


def _inner(equation: Any) -> list[Jaxpr]:
    """Return the inner programs of an operation, such as the body of a loop."""
    values = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
    return [value.jaxpr if isinstance(value, ClosedJaxpr) else value for value in values if _is_program(value)]


def _turns(equation: Any) -> int:
    """Return how often an operation runs its inner program; 1 for a loop without a fixed number of iterations."""
    name = equation.primitive.name
    if name == "scan":
        return int(equation.params["length"])
    return math.prod(equation.params["grid_mapping"].grid) if name == "pallas_call" else 1


def _product(equation: Any) -> float:
    params = equation.params
    numbers = params.get("dimension_numbers") or params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    ((contracted, _), _), left = numbers, equation.invars[0].aval.shape
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _convolution(equation: Any) -> float:
    """Return the FLOPs of a convolution: two per product.

    Products with padding, or with the holes of a dilated input, do not count.
    """
    params = equation.params
    numbers = params["dimension_numbers"]
    left, right, out = (one.aval.shape for one in (*equation.invars, *equation.outvars))
    used = 1
    for axis, (low, _) in enumerate(params["padding"]):
        size, width, length = (shape[spec[2 + axis]] for shape, spec in zip((left, right, out), numbers, strict=True))
        hole = params["lhs_dilation"][axis]
        at = np.arange(length)[:, None] * params["window_strides"][axis]
        at = at + np.arange(width) * params["rhs_dilation"][axis] - low
        used *= int(np.sum((at >= 0) & (at <= (size - 1) * hole) & (at % hole == 0)))
    batch, features = out[numbers.out_spec[0]], out[numbers.out_spec[1]]
    return 2.0 * batch * features * right[numbers.rhs_spec[1]] * used


def _is_program(value: Any) -> bool:
    return isinstance(value, (ClosedJaxpr, Jaxpr))


def _shapes(tree: Any) -> Any:
    """Return the tree with shapes and dtypes in place of arrays, without shardings."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
