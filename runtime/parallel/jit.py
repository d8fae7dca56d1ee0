"""Data parallelism by `jax.jit`: arrays have shardings, and the compiler inserts the communication.

With `fsdp`, parameters are all-gathered before use and gradients reduce-scattered; sharding constraints tell the compiler
where.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType

from .global_program import Function, GlobalProgram


class Jit(GlobalProgram):
    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, grid=config.parallel.grid, axis_type=AxisType.Auto, **kwargs)

    def constrain(self, tree: Any, layout: Any) -> Any:
        return jax.lax.with_sharding_constraint(tree, layout)

    def split_shares(self, x: jax.Array) -> jax.Array:
        return self.place_shares(x.reshape(self.shares, -1, *x.shape[1:]))

    def place_shares(self, x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, self.batch_sharding)

    def auto_sharded(self, function: Function, shardings: Any) -> Function:
        return function
