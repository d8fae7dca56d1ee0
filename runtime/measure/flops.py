"""How much a training step computes: the model's FLOPs, which depend on the task only and not on how it is parallel.

What XLA counts in the program of loss and gradients before it is optimised, so nothing that a strategy or a compiler adds is
in it: no communication, no optimizer. A product and the addition of its result are two. What a task asks to be computed again
(`jax.checkpoint`) counts again; kernels that XLA cannot look into do not count.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from ..state import Batch, Params
from ..tasks.base import Task


def step_flops(task: Task, params: Params, batch: Batch) -> float | None:
    """FLOPs of the loss over `batch` and of its gradients; None if JAX has no CPU here, where they are counted.

    Args:
        task: what is trained.
        params: its parameters, as arrays or as `jax.ShapeDtypeStruct`.
        batch: a global batch, likewise.
    """
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS does not name it
        return None
    step = jax.value_and_grad(task.loss, has_aux=True)
    shapes = _shapes((params, batch, jax.eval_shape(lambda: jax.random.key(0))))
    with jax.default_device(cpu):  # the plug-ins of GPUs and TPUs do not count
        return _count(jax.make_jaxpr(step)(*shapes))


def _count(program: ClosedJaxpr) -> float:
    cost: Any = jax.jit(jaxpr_as_fun(program)).lower(*_shapes(program.in_avals)).cost_analysis()
    return float(cost.get("flops", 0.0)) + _left_out(program.jaxpr)


def _left_out(program: Jaxpr) -> float:
    """XLA counts the body of a loop once: what its other turns add, for loops whose length is known."""
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
    """Without what says where the arrays are."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
