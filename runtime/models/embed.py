"""Rows of a table."""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec


class Embed(nn.Embed):
    """flax's, for any way of being parallel: where the layout is part of the type, JAX wants to be told a gather's."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """int32[...] -> dtype[..., features]"""
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty or not mesh.are_all_axes_explicit:
            return super().__call__(inputs)
        table = self.embedding.astype(self.dtype) if self.dtype else self.embedding
        spec = PartitionSpec(*jax.typeof(inputs).sharding.spec, None)
        return table.at[inputs].get(out_sharding=spec)
