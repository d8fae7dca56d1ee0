"""Dropout that works with explicit sharding, where shardings are part of the arrays' types."""

from __future__ import annotations

import flax.linen as nn
import jax


class Dropout(nn.Module):
    """flax.linen.Dropout with the same random numbers, but by a product instead of `where`.

    The mask is replicated and x may be divided over devices. JAX infers the sharding of their product, but refuses `where`.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Return an array like x: each element is 0 with probability `rate`, and otherwise divided by 1 - rate."""
        if deterministic or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = jax.random.bernoulli(self.make_rng("dropout"), keep, x.shape)
        return x / keep * mask.astype(x.dtype)
