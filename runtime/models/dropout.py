"""Dropout that may be traced while the layout of arrays is part of their types."""

from __future__ import annotations

import flax.linen as nn
import jax


class Dropout(nn.Module):
    """As flax.linen.Dropout, and with the same random numbers, but a product instead of a selection.

    The mask is on every device, x may be in parts: a product of the two is in parts, a selection is refused by JAX.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """[...] -> [...]: each element 0 with probability `rate`, otherwise divided by 1 - rate."""
        if deterministic or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = jax.random.bernoulli(self.make_rng("dropout"), keep, x.shape)
        return x / keep * mask.astype(x.dtype)
