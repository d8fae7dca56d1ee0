"""Count the FLOPs of a training step: the model's, which depend on the task and not on the parallelism strategy.

XLA counts them in the program of loss and gradients before it is optimised, so nothing that a strategy or a compiler adds is
included: no communication, no optimizer. A multiply-add counts as two. What `jax.checkpoint` computes again for the gradients
is no work of the model and does not count; kernels that XLA cannot look into do not count.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from ..config import Config
from ..data.base import Examples
from ..data.pipeline import batch_shapes
from ..parallel.base import Strategy
from ..state import Batch, Params, parts, variables
from ..tasks.base import Task
from .peak import peak_of, seconds_at_peak

_CHECKPOINT = {"prevent_cse", "policy"}
"""Parameters of the primitive of `jax.checkpoint`, whose name differs between versions."""


def step_seconds_at_peak(
    config: Config, task: Task, strategy: Strategy, examples: Examples, batch_size: int
) -> float | None:
    """Return the least time of a step on these devices; None if their peak is not known."""
    kind = jax.devices()[0].device_kind
    if peak_of(kind) is None or config.optimizer.whole_set:  # L-BFGS, whose steps differ in length
        return None
    initial = strategy.initial.shapes
    params = variables(initial.params, initial.model_state)
    flops = step_flops(task, params, batch_shapes(examples, batch_size))
    return None if flops is None else seconds_at_peak(flops * strategy.models, kind, strategy.devices, config.precision)


def step_flops(task: Task, params: Params, batch: Batch) -> float | None:
    """Return the FLOPs of the loss over `batch` and of its gradients; None if JAX has no CPU backend, which counts them.

    Args:
        task: what is trained.
        params: what `task.init` returns, as arrays or as `jax.ShapeDtypeStruct`.
        batch: a global batch, [B, ...] each, likewise.
    """
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS does not name it
        return None
    trained, state = parts(params)
    shapes = _shapes((trained, state, batch, jax.eval_shape(lambda: jax.random.key(0))))
    with jax.default_device(cpu):  # the plug-ins of GPUs and TPUs do not count
        traced = jax.make_jaxpr(lambda p, s, *rest: task.loss(variables(p, s), *rest))(*shapes)
        loss = jaxpr_as_fun(traced.replace(jaxpr=_keeping_all(traced.jaxpr)))

        def first_and_rest(params: Any, *rest: Any) -> Any:
            value, *others = loss(*jax.tree.leaves((params, *rest)))
            return value, others

        return _count(jax.make_jaxpr(jax.value_and_grad(first_and_rest, has_aux=True))(*shapes))


def _keeping_all(program: Jaxpr) -> Jaxpr:
    """Return a program whose `jax.checkpoint`, at any depth, keeps all that the gradients need."""

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
    return float(cost.get("flops", 0.0)) + _left_out(program.jaxpr)


def _left_out(program: Jaxpr) -> float:
    """Return the FLOPs of further turns of loops of known length: XLA counts the body of a loop once."""
    total = 0.0
    for equation in program.eqns:
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(inner):
                total += _left_out(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)
        if equation.primitive.name == "scan":
            total += (equation.params["length"] - 1) * _count(equation.params["jaxpr"])
    return total


def _is_program(value: Any) -> bool:
    return isinstance(value, (ClosedJaxpr, Jaxpr))


def _shapes(tree: Any) -> Any:
    """Return the shapes and dtypes of arrays without their shardings."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
