"""A linear model: one dense layer. Letters in shapes: B batch, K outputs."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from ..config.model import Linear as Section


class Linear(nn.Module):
    """Dense layer whose weights and biases start at zero."""

    config: Section
    outputs: int
    dtype: jnp.dtype
    """Data type of the computation; parameters are float32."""

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool = True) -> jax.Array:
        """Map float32[B, ...] to float32[B, K]."""
        x = x.reshape((x.shape[0], -1))
        zeros, bias = nn.initializers.zeros, self.config.bias
        head = nn.Dense(self.outputs, use_bias=bias, dtype=self.dtype, kernel_init=zeros, name="head")
        return head(x).astype(jnp.float32)
