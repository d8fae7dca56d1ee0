"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

A transformer decoder with pre-LayerNorm, learned positions, tanh-approximated GELU, and the output projection tied to the
token embedding. Initialisation as published: normal with standard deviation 0.02, scaled by 1/sqrt(2 * layers) in the layers
that add to the residual stream; biases zero.

Letters in shapes: B batch, T tokens, C width, H heads, D width per head, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ..config.model import GPT2Model, Remat
from .attention import Scores, attend, positions_in
from .layers import saved, tied_logits

_EPSILON = 1e-5
_normal = nn.initializers.normal


class Attention(nn.Module):
    """Causal self-attention."""

    heads: int
    kernel: str
    dropout: float
    std: float
    residual_std: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool, segments: jax.Array | None) -> jax.Array:
        """Map [B, T, C] to [B, T, C]; `segments`, int32[B, T], number the documents in a row."""
        batch, length, width = x.shape
        qkv = nn.Dense(3 * width, dtype=self.dtype, kernel_init=_normal(self.std), name="c_attn")(x)
        query, key, value = jnp.split(qkv.reshape(batch, length, 3 * self.heads, -1), 3, axis=2)
        dropout = nn.Dropout(self.dropout)
        drop = partial(dropout, deterministic=deterministic) if self.dropout else None
        scale = query.shape[-1] ** -0.5
        mixed = attend(query, key, value, self.kernel, Scores(scale), drop=drop, segments=segments)
        mixed = mixed.reshape(batch, length, width)
        out = nn.Dense(width, dtype=self.dtype, kernel_init=_normal(self.residual_std), name="c_proj")(mixed)
        return nn.Dropout(self.dropout)(out, deterministic)


class MLP(nn.Module):
    """Feed-forward network with a hidden width of 4 C."""

    dropout: float
    std: float
    residual_std: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Map [B, T, C] to [B, T, C]."""
        width = x.shape[-1]
        x = nn.Dense(4 * width, dtype=self.dtype, kernel_init=_normal(self.std), name="c_fc")(x)
        x = nn.gelu(x, approximate=True)
        x = nn.Dense(width, dtype=self.dtype, kernel_init=_normal(self.residual_std), name="c_proj")(x)
        return nn.Dropout(self.dropout)(x, deterministic)


class Block(nn.Module):
    """Pre-LayerNorm attention and MLP, each with a residual connection."""

    heads: int
    kernel: str
    dropout: float
    std: float
    residual_std: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool, segments: jax.Array | None = None) -> jax.Array:
        """Map [B, T, C] to [B, T, C]; `segments`, int32[B, T], number the documents in a row."""
        shared = (self.dropout, self.std, self.residual_std, self.dtype)
        normed = nn.LayerNorm(_EPSILON, dtype=self.dtype, name="ln_1")(x)
        x = x + Attention(self.heads, self.kernel, *shared, name="attn")(normed, deterministic, segments)
        normed = nn.LayerNorm(_EPSILON, dtype=self.dtype, name="ln_2")(x)
        return x + MLP(*shared, name="mlp")(normed, deterministic)


def _rematerialized(remat: Remat) -> Any:
    """Return the class of blocks that keep for the backward pass what `model.remat` says, and compute the rest again."""
    if remat == "none":
        return Block
    return nn.remat(Block, static_argnums=(2,), policy=saved(remat))


class GPT2(nn.Module):
    """GPT-2, from tokens to logits."""

    config: GPT2Model
    vocabulary: int
    dtype: jnp.dtype
    """Data type of the computation; parameters are float32."""
    output: str | None = None
    """Data type in which the logits are computed; None: `dtype`."""

    partition_rules = MappingProxyType(
        {r"attn\.c_attn\.kernel|mlp\.c_fc\.kernel": 1, r"c_proj\.kernel|wte\.embedding": 0}
    )

    def setup(self) -> None:
        config = self.config
        std = config.initializer_range
        residual_std = std / (2 * config.layers) ** 0.5
        self.wte = nn.Embed(self.vocabulary, config.width, dtype=self.dtype, embedding_init=_normal(std))
        self.wpe = nn.Embed(config.context, config.width, dtype=self.dtype, embedding_init=_normal(std))
        self.drop = nn.Dropout(config.dropout, name="Dropout_0")
        block = _rematerialized(config.remat)
        shared = (config.heads, config.attention, config.dropout, std, residual_std, self.dtype)
        self.h = [block(*shared) for _ in range(config.layers)]
        self.ln_f = nn.LayerNorm(_EPSILON, dtype=self.dtype)

    def __call__(self, tokens: jax.Array, deterministic: bool = True, segments: jax.Array | None = None) -> jax.Array:
        """Map int32[B, T] to float32[B, T, V]; T is at most config.context.

        With `segments`, int32[B, T], a row has several documents, as in `Decoder`.
        """
        return self.head(self.hidden(tokens, deterministic, segments))

    @nn.nowrap  # so that names in a profile have no `GPT2.hidden`
    def hidden(self, tokens: jax.Array, deterministic: bool = True, segments: jax.Array | None = None) -> jax.Array:
        """Map int32[B, T] to the input of the head, [B, T, C]."""
        x = self.wte(tokens) + self.wpe(positions_in(tokens, segments))
        x = self.drop(x, deterministic)
        for block in self.h:
            x = block(x, deterministic, segments)
        return self.ln_f(x)

    @nn.nowrap
    def head(self, hidden: jax.Array) -> jax.Array:
        """Map [..., C] to logits, float32[..., V]."""
        return tied_logits(self.wte, hidden, self.output).astype(jnp.float32)
