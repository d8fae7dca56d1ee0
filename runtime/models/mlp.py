"""Dense layers of one width. Letters in shapes: B batch, K outputs."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from ..config.model import MLP as Section
from .dropout import Dropout

_ACTIVATIONS = {"tanh": jnp.tanh, "relu": nn.relu, "gelu": nn.gelu}


class MLP(nn.Module):
    """`layers` hidden layers with activation and dropout, then the output layer."""

    config: Section
    outputs: int
    dtype: jnp.dtype
    """Data type of the computation; parameters are float32."""

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool = True) -> jax.Array:
        """Map float32[B, ...] to float32[B, K]."""
        x = x.reshape((x.shape[0], -1))
        for number in range(self.config.layers):
            x = self._dense(self.config.width, f"dense_{number}")(x)
            x = _ACTIVATIONS[self.config.activation](x)
            x = Dropout(self.config.dropout)(x, deterministic)
        return self._dense(self.outputs, "head")(x).astype(jnp.float32)

    def _dense(self, width: int, name: str) -> nn.Dense:
        """Return a dense layer with the config's initialisers; by default LeCun normal weights and zero biases."""
        init, config = nn.initializers, self.config
        weights = init.lecun_normal() if config.weight_std is None else init.normal(config.weight_std)
        biases = init.normal(config.bias_std) if config.bias_std else init.zeros
        return nn.Dense(width, dtype=self.dtype, kernel_init=weights, bias_init=biases, name=name)
