"""Small language models that look rows of tables up, in four frameworks, each in the way that is usual there."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

WIDTH = 16


class LinenModel(nn.Module):
    """flax's lm1b example in small: Embed for tokens and positions, attention with a causal mask, dropout, a tied head."""

    vocabulary: int

    @nn.compact
    def __call__(self, tokens: jax.Array, deterministic: bool = True) -> jax.Array:
        table = nn.Embed(self.vocabulary, WIDTH)
        positions = self.param("positions", nn.initializers.normal(0.02), (64, WIDTH))
        x = table(tokens) + positions[jnp.arange(tokens.shape[1])]
        x = nn.SelfAttention(2)(nn.LayerNorm()(x), mask=nn.make_causal_mask(tokens))
        x = nn.Dropout(0.0)(x, deterministic)
        return table.attend(x)


def linen_model(options: Any, vocabulary: int, dtype: Any) -> nn.Module:
    return LinenModel(vocabulary)


class NNXModel(nnx.Module):
    def __init__(self, options: Any, vocabulary: int, dtype: Any, *, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(vocabulary, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(64, WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.head = nnx.Linear(WIDTH, vocabulary, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        return self.head(self.attention(x, mask=nnx.make_causal_mask(tokens)))


nnx_model = NNXModel


class EquinoxModel(eqx.Module):
    tokens: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    attention: eqx.nn.MultiheadAttention
    head: eqx.nn.Linear

    def __init__(self, options: Any, vocabulary: int, dtype: Any, key: jax.Array) -> None:
        a, b, c, d = jax.random.split(key, 4)
        self.tokens, self.positions = eqx.nn.Embedding(vocabulary, WIDTH, key=a), eqx.nn.Embedding(64, WIDTH, key=b)
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=c)
        self.head = eqx.nn.Linear(WIDTH, vocabulary, key=d)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        length = tokens.shape[0]
        x = jax.vmap(self.tokens)(tokens) + jax.vmap(self.positions)(jnp.arange(length))
        x = self.attention(x, x, x, mask=jnp.tril(jnp.ones((length, length), bool)))
        return jax.vmap(self.head)(x)


equinox_model = EquinoxModel


class PlainModel:
    """Rows by an index, a selection with a mask, and a row that is written."""

    inits = 0
    """Number of times that `init` was called."""

    def __init__(self, options: Any, vocabulary: int, dtype: Any) -> None:
        self._vocabulary = vocabulary

    def init(self, key: jax.Array) -> Any:
        PlainModel.inits += 1
        return {"table": jax.random.normal(key, (self._vocabulary, WIDTH)) / WIDTH, "first": jnp.zeros(WIDTH)}

    def apply(self, params: Any, tokens: jax.Array) -> jax.Array:
        x = params["table"][tokens]
        x = x.at[:, 0].set(x[:, 0] + params["first"])
        x = jnp.where((tokens % 2 == 0)[..., None], x, jnp.take(params["table"], tokens // 2, axis=0))
        return jnp.cumsum(x, axis=1) @ params["table"].T


plain_model = PlainModel
