"""One network in four frameworks, with the layers that each has itself: two hidden ones, a norm, and a head."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

INPUTS, WIDTH, OUTPUTS, EPSILON = 12, 8, 4, 1e-5
SHAPES = {
    "first": {"w": (INPUTS, WIDTH), "b": (WIDTH,)},
    "norm": {"w": (WIDTH,), "b": (WIDTH,)},
    "second": {"w": (WIDTH, WIDTH), "b": (WIDTH,)},
    "head": {"w": (WIDTH, OUTPUTS), "b": (OUTPUTS,)},
}
"""Names and shapes of plain JAX. The others have names of their own, and Equinox matrices of [out, in]."""


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.LayerNorm(EPSILON, use_fast_variance=False, name="norm")(nn.Dense(WIDTH, name="first")(x))
        x = jnp.tanh(nn.Dense(WIDTH, name="second")(x))
        outputs: jax.Array = nn.Dense(OUTPUTS, name="head")(x)
        return outputs


class NNXNet(nnx.Module):
    def __init__(self, options: Any, outputs: int, dtype: Any, *, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(INPUTS, WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, epsilon=EPSILON, use_fast_variance=False, rngs=rngs)
        self.second = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, OUTPUTS, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(jnp.tanh(self.second(self.norm(self.first(x)))))


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    second: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        self.first = eqx.nn.Linear(INPUTS, WIDTH, key=key)
        self.norm = eqx.nn.LayerNorm(WIDTH, EPSILON)
        self.second = eqx.nn.Linear(WIDTH, WIDTH, key=key)
        self.head = eqx.nn.Linear(WIDTH, OUTPUTS, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(jnp.tanh(self.second(self.norm(self.first(x)))))


class PlainNet:
    def init(self, key: jax.Array) -> Any:
        return jax.tree.map(jnp.zeros, SHAPES, is_leaf=lambda leaf: isinstance(leaf, tuple))

    def apply(self, params: Any, x: jax.Array) -> jax.Array:
        first, norm, second, head = (params[name] for name in SHAPES)
        x = x @ first["w"] + first["b"]
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + EPSILON) * norm["w"] + norm["b"]
        return jnp.tanh(x @ second["w"] + second["b"]) @ head["w"] + head["b"]


def linen(options: Any, outputs: int, dtype: Any) -> nn.Module:
    return LinenNet()


nnx_net = NNXNet


def equinox(options: Any, outputs: int, dtype: Any, key: jax.Array) -> EquinoxNet:
    return EquinoxNet(key)


def plain(options: Any, outputs: int, dtype: Any) -> PlainNet:
    return PlainNet()


NAMES = {
    "linen": ("linen", {"w": "kernel", "b": "bias"}),
    "nnx": ("nnx_net", {"w": "kernel", "b": "bias"}),
    "equinox": ("equinox", {"w": "weight", "b": "bias"}),
    "plain": ("plain", {"w": "w", "b": "b"}),
}
"""The function of each framework, and its names for matrix and bias."""


def as_in(framework: str, weights: Any) -> Any:
    """Return weights of plain JAX under the names and in the layout of a framework."""
    names = NAMES[framework][1]
    result = {}
    for layer, arrays in weights.items():
        leaves = {names[name]: np.array(array) for name, array in arrays.items()}
        if layer == "norm" and "kernel" in leaves:
            leaves["scale"] = leaves.pop("kernel")
        if framework == "equinox":
            leaves["weight"] = leaves["weight"].T
        result[layer] = leaves
    return result
