"""Dropout that may be traced while the layout of arrays is part of their types."""

from __future__ import annotations

import flax.linen as nn
import jax


class Dropout(nn.Module):
    """flax.linen.Dropout with the same random numbers, but with a product instead of a selection.

    The mask is whole on every device, x may be divided: their product is divided too, but JAX refuses a selection.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Map [...] to [...]: each element becomes 0 with probability `rate`, otherwise it is divided by 1 - rate."""
        if deterministic or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = jax.random.bernoulli(self.make_rng("dropout"), keep, x.shape)
        return x / keep * mask.astype(x.dtype)
