"""Look up rows of a table."""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec


class Embed(nn.Embed):
    """flax's Embed for all strategies: where the layout is part of the type, JAX requires that of a gather."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Map int32[...] to dtype[..., features]."""
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty or not mesh.are_all_axes_explicit:
            return super().__call__(inputs)
        table = self.embedding.astype(self.dtype) if self.dtype else self.embedding
        spec = PartitionSpec(*jax.typeof(inputs).sharding.spec, None)
        return table.at[inputs].get(out_sharding=spec)
