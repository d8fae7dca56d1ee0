"""Count the FLOPs of a training step: the model's, which depend on the task and not on the parallelism strategy.

XLA counts them in the program of loss and gradients before it is optimised, so nothing that a strategy or a compiler adds is
included: no communication, no optimizer. A multiply-add counts as two. Rematerialisation that a task asks for
(`jax.checkpoint`) counts again; kernels that XLA cannot look into do not count.
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
from ..tasks.base import Task, first_parameters
from .peak import peak_of, seconds_at_peak


def step_seconds_at_peak(
    config: Config, task: Task, strategy: Strategy, examples: Examples, batch_size: int
) -> float | None:
    """Return the least time of a step on these devices; None if their peak is not known."""
    kind = jax.devices()[0].device_kind
    if peak_of(kind) is None or config.optimizer.whole_set:  # L-BFGS, whose steps differ in length
        return None
    params = jax.eval_shape(lambda key: first_parameters(task, key), jax.random.key(0))
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
    step = jax.value_and_grad(lambda p, s, *rest: task.loss(variables(p, s), *rest), has_aux=True)
    shapes = _shapes((trained, state, batch, jax.eval_shape(lambda: jax.random.key(0))))
    with jax.default_device(cpu):  # the plug-ins of GPUs and TPUs do not count
        return _count(jax.make_jaxpr(step)(*shapes))


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
