"""Count the model FLOPs of a training step. They depend on the task, not on the parallelism strategy.

XLA counts them in the unoptimised program of loss and gradients, so they include neither communication nor the optimizer
nor anything that the compiler adds. A multiply-add counts as two. Not counted: recomputation by `jax.checkpoint`, and custom
kernels, which XLA cannot analyse.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from ..config import Config
from ..data.base import Examples
from ..data.pipeline import batch_shapes
from ..models.shares import of_one_share
from ..parallel.base import Strategy
from ..state import Batch, Params, parts, variables
from ..tasks.base import Task
from .peak import peak_of, seconds_at_peak

_CHECKPOINT = {"prevent_cse", "policy"}
"""Parameters of the primitive of `jax.checkpoint`, whose name differs between versions."""


def step_seconds_at_peak(
    config: Config, task: Task, strategy: Strategy, examples: Examples, batch_size: int
) -> float | None:
    """Return the seconds that a step's FLOPs take at the peak of the devices; None if their peak is unknown."""
    kind = jax.devices()[0].device_kind
    if peak_of(kind) is None or config.optimizer.whole_set:  # L-BFGS, whose steps differ in length
        return None
    initial = strategy.initial.shapes
    params = variables(initial.params, initial.model_state)
    flops = step_flops(task, params, batch_shapes(examples, batch_size))
    return None if flops is None else seconds_at_peak(flops * strategy.models, kind, strategy.devices, config.precision)


def step_flops(task: Task, params: Params, batch: Batch) -> float | None:
    """Return the FLOPs of the loss over `batch` and of its gradients; None without JAX's CPU backend, which counts them.

    Args:
        task: the task, which has the loss.
        params: variables as `task.init` returns them, as arrays or as `jax.ShapeDtypeStruct`.
        batch: a global batch of arrays or `jax.ShapeDtypeStruct`, [B, ...] each.
    """
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS does not name cpu
        return None
    trained, state = parts(params)
    shapes = _shapes((trained, state, batch, jax.eval_shape(lambda: jax.random.key(0))))
    with jax.default_device(cpu):  # the backends of GPUs and TPUs count no FLOPs
        traced = jax.make_jaxpr(of_one_share(lambda p, s, *rest: task.loss(variables(p, s), *rest)))(*shapes)
        loss = jaxpr_as_fun(traced.replace(jaxpr=_keeping_all(traced.jaxpr)))

        def first_and_rest(params: Any, *rest: Any) -> Any:
            value, *others = loss(*jax.tree.leaves((params, *rest)))
            return value, others

        return _count(jax.make_jaxpr(jax.value_and_grad(first_and_rest, has_aux=True))(*shapes))


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


def _count(program: ClosedJaxpr) -> float:
    cost: Any = jax.jit(jaxpr_as_fun(program)).lower(*_shapes(program.in_avals)).cost_analysis()
    return float(cost.get("flops", 0.0)) + _later_iterations(program.jaxpr)


def _later_iterations(program: Jaxpr) -> float:
    """Return the FLOPs of all but the first iteration of each scan, because XLA counts the body of a loop once."""
    total = 0.0
    for equation in program.eqns:
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(inner):
                total += _later_iterations(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)
        if equation.primitive.name == "scan":
            total += (equation.params["length"] - 1) * _count(equation.params["jaxpr"])
    return total


def _is_program(value: Any) -> bool:
    return isinstance(value, (ClosedJaxpr, Jaxpr))


def _shapes(tree: Any) -> Any:
    """Return the tree with shapes and dtypes in place of arrays, without shardings."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
