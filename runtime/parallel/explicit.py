"""The strategy `jit` with the layout in the type of every array (https://docs.jax.dev/en/latest/parallel.html).

State, batch, gradients and the optimizer's updates have their layouts in their types: `jax.typeof(x)` says how x is laid out,
at trace time, and changes of layout are written out: `jax.sharding.reshard`. In the model and its loss the compiler
chooses (`jax.sharding.auto_axes`): JAX refuses operations for whose result it cannot tell a layout, such as a lookup in a
table, unless each of them says it.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec, auto_axes, reshard

from ..state import Params
from .whole import Function, WholeProgram


class Explicit(WholeProgram):
    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, fsdp=config.parallel.grid.fsdp, axis_type=AxisType.Explicit, **kwargs)

    def whole(self, params: Params) -> Params:
        return jax.tree.map(lambda x: _laid_out(x, PartitionSpec()), params)

    def lay_out(self, tree: Any, layout: Any) -> Any:
        return jax.tree.map(lambda x, sharding: _laid_out(x, sharding.spec), tree, layout)

    def divide(self, x: jax.Array) -> jax.Array:
        return jax.lax.reshape(x, (self.shares, x.shape[0] // self.shares, *x.shape[1:]), out_sharding=self.divided)

    def on_shares(self, x: jax.Array) -> jax.Array:
        return reshard(x, PartitionSpec(self.axes))

    def for_model(self, function: Function) -> Function:
        return auto_axes(function, out_sharding=PartitionSpec())


def _laid_out(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """Return `x` with the layout `spec`. An array that has it already is left alone: each change of layout is compiled."""
    if any(x.aval.sharding.spec) or any(spec):
        return reshard(x, spec)
    return x
