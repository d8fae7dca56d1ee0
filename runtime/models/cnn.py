"""The network of Flax's MNIST example (https://github.com/google/flax/tree/main/examples/mnist): about 99 % accuracy.

Letters in shapes: B batch, H height, W width, C channels, K outputs.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from ..config.model import CNN as Section
from .dropout import Dropout


class CNN(nn.Module):
    """3x3 convolution, ReLU and 2x2 average pooling for each of `features`; a dense layer with ReLU; the output layer."""

    config: Section
    outputs: int
    dtype: jnp.dtype
    """Data type of the computation; parameters are float32."""

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool = True) -> jax.Array:
        """Map float32[B, H, W, C] or [B, H, W] to float32[B, K]."""
        x = x[..., None] if x.ndim == 3 else x
        for number, features in enumerate(self.config.features):
            x = nn.relu(nn.Conv(features, (3, 3), dtype=self.dtype, name=f"conv_{number}")(x))
            x = nn.avg_pool(x, (2, 2), (2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(self.config.dense, dtype=self.dtype, name="dense")(x))
        x = Dropout(self.config.dropout)(x, deterministic)
        return nn.Dense(self.outputs, dtype=self.dtype, name="head")(x).astype(jnp.float32)
