"""Data parallelism by `jax.jit` alone: arrays say where they are, the compiler does the rest.

With `fsdp` parameters are gathered where they are needed and gradients reduced to where they are kept; the constraints say
only how each should be laid out.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType

from ..state import Params
from .whole import Function, WholeProgram


class Jit(WholeProgram):
    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, fsdp=config.parallel.grid.fsdp, axis_type=AxisType.Auto, **kwargs)

    def whole(self, params: Params) -> Params:
        return jax.lax.with_sharding_constraint(params, self.replicated)

    def lay_out(self, tree: Any, layout: Any) -> Any:
        return jax.lax.with_sharding_constraint(tree, layout)

    def divide(self, x: jax.Array) -> jax.Array:
        return self.on_shares(x.reshape(self.shares, -1, *x.shape[1:]))

    def on_shares(self, x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, self.divided)

    def for_model(self, function: Function) -> Function:
        return function
