"""The strategy `jit` with explicit sharding: shardings are part of array types (https://docs.jax.dev/en/latest/parallel.html).

State, batch and gradients have explicit shardings: `jax.typeof(x)` shows them at trace time, and `jax.sharding.reshard`
changes them. In the loss and in the optimizer's update the compiler chooses (`jax.sharding.auto_axes`): JAX refuses
operations whose result has no unambiguous sharding, such as a table lookup, unless each of them states it, and it adds a
sharding constraint to each operation on arrays with explicit shardings, about 30 per parameter in an update by adam.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec, auto_axes, reshard

from .global_program import Function, GlobalProgram


class Explicit(GlobalProgram):
    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, grid=config.parallel.grid, axis_type=AxisType.Explicit, **kwargs)

    def constrain(self, tree: Any, layout: Any) -> Any:
        return jax.tree.map(lambda x, sharding: _reshard(x, sharding.spec), tree, layout)

    def split_shares(self, x: jax.Array) -> jax.Array:
        return jax.lax.reshape(
            x, (self.shares, x.shape[0] // self.shares, *x.shape[1:]), out_sharding=self.batch_sharding
        )

    def place_shares(self, x: jax.Array) -> jax.Array:
        return reshard(x, PartitionSpec(self.axes))

    def auto_sharded(self, function: Function, shardings: Any) -> Function:
        return auto_axes(function, out_sharding=jax.tree.map(lambda sharding: sharding.spec, shardings))


def _reshard(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """Return `x` with the sharding `spec`. Replicated arrays that stay so are not resharded, which would be compiled."""
    if any(x.aval.sharding.spec) or any(spec):
        return reshard(x, spec)
    return x
