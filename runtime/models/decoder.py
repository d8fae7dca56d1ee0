"""A transformer decoder whose parts the config chooses: Llama, Mistral, Qwen, Gemma and models like them.

Each block adds attention and then an MLP to the residual stream, each of them after a norm. All else is a value of
`DecoderModel`: norms, positions, grouped queries, windows, gates, biases, soft caps. `families` has the values of published
models. Parameters are float32; norms, angles, scores and logits are computed in float32.

Letters in shapes: B batch, T tokens, S tokens as keys, C width, H query heads, K heads of keys and values, G = H / K queries
that share one, D size of a head, F hidden width of the MLP, V vocabulary.
"""

from __future__ import annotations

import math
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ..config.model import AnyRope, DecoderModel, DynamicRope, LinearRope, Llama3Rope, Lora, YarnRope
from .attention import Scores, attend, positions_in
from .dropout import Dropout
from .gathering import Tables
from .layers import Layers, tied_logits

# --- rotary positions ---


class Rotation(NamedTuple):
    """Cosines and sines of the angles by which RoPE turns the pairs of a head: float32[T, D/2] or [B, T, D/2] each."""

    cos: jax.Array
    sin: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """Turn [B, T, heads, D]; the partner of number i is number i + D/2."""
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        cos, sin = self.cos[..., None, :], self.sin[..., None, :]
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


Rotations = tuple[Rotation | None, Rotation | None]
"""Of full layers, and of sliding ones; None with learned positions."""


def rotation(rope: AnyRope, size: int, positions: jax.Array, length: int) -> Rotation:
    """Return the rotation of heads of `size` at `positions`, int32[T] or [B, T], of a sequence of `length` tokens."""
    frequencies = jnp.asarray(rope_frequencies(rope, size, length), jnp.float32)
    angles = positions.astype(jnp.float32)[..., None] * frequencies
    factor = 1.0
    if isinstance(rope, YarnRope):
        factor = rope.attention_factor or 0.1 * math.log(rope.factor) + 1
    return Rotation(jnp.cos(angles) * factor, jnp.sin(angles) * factor)


def rope_frequencies(rope: AnyRope, size: int, length: int) -> np.ndarray:
    """Return the angle between neighbouring positions for each pair of a head, in radians, float64[size/2]."""
    exponents = np.arange(0, size, 2) / size
    frequencies = rope.theta**-exponents
    match rope:
        case LinearRope():
            return frequencies / rope.factor
        case DynamicRope():
            longer = max(length, rope.original_context) / rope.original_context
            stretch = rope.factor * longer - (rope.factor - 1)
            return (rope.theta * stretch ** (size / (size - 2))) ** -exponents
        case YarnRope():
            first, last = (_pair_that_turns(rope, size, times) for times in (rope.beta_fast, rope.beta_slow))
            if rope.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, size - 1)
            last += 0.001 * (first == last)
            stretched = np.clip((np.arange(size // 2) - first) / (last - first), 0, 1)
            return frequencies * (1 - stretched) + frequencies / rope.factor * stretched
        case Llama3Rope():
            turns = rope.original_context * frequencies / (2 * np.pi)
            kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
            kept = np.clip(kept, 0, 1)
            return frequencies * kept + frequencies / rope.factor * (1 - kept)
    return frequencies


def _pair_that_turns(rope: YarnRope, size: int, times: float) -> float:
    """Return the number of the pair, a fraction, that makes `times` turns within the original context."""
    return size * math.log(rope.original_context / (times * 2 * math.pi)) / (2 * math.log(rope.theta))


# --- layers ---


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last axis."""

    config: DecoderModel
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [..., n] to [..., n]."""
        kind, size = self.config.norm, x.shape[-1:]
        x = x.astype(jnp.float32)
        if kind == "layer":
            x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.config.norm_epsilon)
        if kind == "rms_plus_1":
            x = x * (1 + self.param("scale", nn.initializers.zeros, size))
        else:
            x = x * self.param("scale", nn.initializers.ones, size)
        if kind == "layer":
            x = x + self.param("bias", nn.initializers.zeros, size)
        return x.astype(self.dtype)


class LowRank(nn.Module):
    """The product with the LoRA of a matrix: alpha / rank (x A) B."""

    config: Lora
    outputs: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Map [..., n] to [..., outputs]."""
        # The limits of PEFT, 1 / sqrt(inputs): Kaiming's with a slope of sqrt(5), as torch has it for linear layers.
        init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        a = self.param("a", init, (x.shape[-1], self.config.rank))
        b = self.param("b", nn.initializers.zeros, (self.config.rank, self.outputs))
        x = Dropout(self.config.dropout)(x, deterministic).astype(self.dtype)
        return x @ a.astype(self.dtype) @ b.astype(self.dtype) * self.config.scale


class Attention(nn.Module):
    """Causal self-attention, in a sliding layer to the last `window` tokens only."""

    config: DecoderModel
    sliding: bool
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self, x: jax.Array, rotate: Rotation | None, deterministic: bool, segments: jax.Array | None = None
    ) -> jax.Array:
        """Map [B, T, C] to [B, T, C]; `segments`, int32[B, T], number the documents in a row."""
        c = self.config
        batch, length, width = x.shape
        init = nn.initializers.normal(c.initializer_range)

        def heads(name: str, number: int) -> jax.Array:
            dense = nn.Dense(number * c.size, c.bias != "none", dtype=self.dtype, kernel_init=init, name=name)
            return _product(c, dense, x, deterministic).reshape(batch, length, number, c.size)

        query, key, value = heads("q", c.heads), heads("k", c.groups), heads("v", c.groups)
        if c.qk_norm:
            query, key = Norm(c, self.dtype, name="q_norm")(query), Norm(c, self.dtype, name="k_norm")(key)
        if rotate is not None:
            query, key = rotate(query), rotate(key)
        dropout = Dropout(c.dropout)
        places = None
        if self.has_variable("cache", "key"):
            key, value, places = self._with_earlier(key, value)
        mixed = attend(
            query,
            key,
            value,
            c.attention,
            Scores(c.attention_scale or c.size**-0.5, c.window if self.sliding else None, c.attention_soft_cap),
            drop=partial(dropout, deterministic=deterministic) if c.dropout else None,
            places=places,
            segments=segments,
        ).reshape(batch, length, c.heads * c.size)
        dense = nn.Dense(width, c.bias == "all", dtype=self.dtype, kernel_init=_residual(c), name="o")
        return Dropout(c.dropout)(_product(c, dense, mixed, deterministic), deterministic)

    def _with_earlier(self, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Put keys and values, [B, T, K, D], into the collection `cache`, which has those of earlier tokens.

        The cache is `key` and `value`, [B, S, K, D], and `start`, int32[B]: the index of the first of the T tokens. Returns
        the keys and values of the cache, and the indices of the T tokens, int32[B, T].
        """
        keys: Any = self.variable("cache", "key")
        values: Any = self.variable("cache", "value")
        places = self.get_variable("cache", "start")[:, None] + jnp.arange(key.shape[1])
        rows = jnp.arange(key.shape[0])[:, None]
        keys.value = keys.value.at[rows, places].set(key)
        values.value = values.value.at[rows, places].set(value)
        return keys.value, values.value, places


class MLP(nn.Module):
    """Feed-forward network, gated or not."""

    config: DecoderModel
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Map [B, T, C] to [B, T, C]."""
        c, width = self.config, x.shape[-1]
        bias, init = c.bias == "all", nn.initializers.normal(c.initializer_range)

        def wide(name: str) -> jax.Array:
            dense = nn.Dense(c.hidden_width, bias, dtype=self.dtype, kernel_init=init, name=name)
            return _product(c, dense, x, deterministic)

        hidden = wide("up")
        if c.mlp == "gelu":
            hidden = nn.gelu(hidden)
        else:
            gate = wide("gate")
            hidden = (nn.silu(gate) if c.mlp == "swiglu" else nn.gelu(gate)) * hidden
        dense = nn.Dense(width, bias, dtype=self.dtype, kernel_init=_residual(c), name="down")
        return Dropout(c.dropout)(_product(c, dense, hidden, deterministic), deterministic)


class Block(nn.Module):
    """Attention and MLP, each after a norm and with a residual connection."""

    config: DecoderModel
    sliding: bool
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self, x: jax.Array, rotations: Rotations, deterministic: bool, segments: jax.Array | None = None
    ) -> jax.Array:
        """Map [B, T, C] to [B, T, C]; `segments`, int32[B, T], number the documents in a row."""
        c = self.config
        out = Norm(c, self.dtype, name="attn_norm")(x)
        attention = Attention(c, self.sliding, self.dtype, name="attn")
        out = attention(out, rotations[self.sliding], deterministic, segments)
        x = x + (Norm(c, self.dtype, name="attn_post_norm")(out) if c.post_norms else out)
        out = Norm(c, self.dtype, name="mlp_norm")(x)
        out = MLP(c, self.dtype, name="mlp")(out, deterministic)
        return x + (Norm(c, self.dtype, name="mlp_post_norm")(out) if c.post_norms else out)


class Decoder(nn.Module):
    """A decoder, from tokens to logits."""

    config: DecoderModel
    vocabulary: int
    dtype: jnp.dtype
    """Data type of the computation; parameters are float32."""
    output: str | None = None
    """Data type in which the logits are computed; None: `dtype`."""

    stacked = ("layers",)
    partition_rules = MappingProxyType(  # heads, hidden units and token ids are divided
        {
            r"attn\.[qkv]\.kernel|mlp\.(up|gate)\.kernel|lm_head\.kernel": -1,
            r"attn\.o\.kernel|mlp\.down\.kernel|embed\.embedding": 0,
            r"attn\.[qkv]_lora\.b|mlp\.(up|gate)_lora\.b": -1,  # outputs, as of the matrix
            r"attn\.o_lora\.a|mlp\.down_lora\.a": 0,  # inputs
        }
    )

    def setup(self) -> None:
        c, init = self.config, nn.initializers.normal(self.config.initializer_range)
        self.embed = nn.Embed(self.vocabulary, c.width, dtype=self.dtype, embedding_init=init)
        if c.positions == "learned":
            self.positions = nn.Embed(c.context, c.width, dtype=self.dtype, embedding_init=init)
        self.dropout = Dropout(c.dropout)
        pattern = [Block(c, c.is_sliding(i), self.dtype) for i in range(c.period)]
        self.layers = Layers(pattern, c.layers // c.period, c.remat, c.scan_layers is not False)
        self.final_norm = Norm(c, self.dtype)
        if not c.tied_head:
            self.lm_head = nn.Dense(self.vocabulary, use_bias=False, dtype=self.output or self.dtype, kernel_init=init)

    def __call__(self, tokens: jax.Array, deterministic: bool = True, segments: jax.Array | None = None) -> jax.Array:
        """Map int32[B, T] to float32[B, T, V]; T is at most config.context.

        With `segments`, int32[B, T], a row has several documents: the number of each token's document, in order. Positions
        begin anew with each of them, and no token attends to those of another.
        """
        return self.head(self.hidden(tokens, deterministic, segments))

    @nn.nowrap  # so that names in a profile have no `Decoder.hidden`
    def hidden(self, tokens: jax.Array, deterministic: bool = True, segments: jax.Array | None = None) -> jax.Array:
        """Map int32[B, T] to the input of the head, [B, T, C]."""
        x, rotations = self.embedded(tokens, positions_in(tokens, segments), tokens.shape[1])
        x = self.dropout(x, deterministic)
        return self.final_norm(self.layers(x, rotations, deterministic, segments))

    @nn.nowrap
    def embedded(self, tokens: jax.Array, positions: jax.Array, length: int) -> tuple[jax.Array, Rotations]:
        """Return the first layer's input, [B, T, C], and the rotations of all layers.

        Args:
            tokens: int32[B, T].
            positions: int32[T] or [B, T].
            length: tokens of the whole sequence.
        """
        c, full, sliding = self.config, None, None
        x = self.embed(tokens)
        if c.scale_embedding:
            x = x * jnp.asarray(c.width**0.5, self.dtype)
        if c.positions == "learned":
            x = x + self.positions(positions)
        else:
            full = rotation(c.rope, c.size, positions, length)
            sliding = rotation(c.sliding_rope, c.size, positions, length) if c.sliding_rope else full
        return x, (full, sliding)

    @nn.nowrap
    def outputs(self, x: jax.Array) -> jax.Array:
        """Map the output of the last layer, [..., C], to logits, float32[..., V]."""
        return self.head(self.final_norm(x))

    @nn.nowrap
    def head(self, hidden: jax.Array) -> jax.Array:
        """Map [..., C] to logits, float32[..., V]."""
        logits = tied_logits(self.embed, hidden, self.output) if self.config.tied_head else self.lm_head(hidden)
        return soft_cap(logits.astype(jnp.float32), self.config.logit_soft_cap)

    @property
    def tables(self) -> Tables:
        """The matrices with a row for each token id."""
        embedding, dtype = "embed.embedding", jnp.dtype(self.output or self.dtype)

        def logits(hidden: jax.Array, rows: jax.Array) -> jax.Array:
            with jax.named_scope("head"):
                products = jnp.dot(hidden.astype(dtype), rows.T)
                return soft_cap(products.astype(jnp.float32), self.config.logit_soft_cap)

        head = (embedding, 0) if self.config.tied_head else ("lm_head.kernel", 1)
        return Tables(embedding, self.dtype, *head, dtype, logits)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """Limit values smoothly to between -cap and cap; without a cap, return them unchanged."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def _product(config: DecoderModel, dense: nn.Dense, x: jax.Array, deterministic: bool) -> jax.Array:
    """Return the product of x with a matrix, plus that with the matrix's LoRA if it has one.

    The arrays of the LoRA belong to the module that calls this.
    """
    out = dense(x)
    if config.lora is None or dense.name is None or not config.lora.has(dense.name):
        return out
    lora = LowRank(config.lora, dense.features, out.dtype, name=f"{dense.name}_lora")
    return out + lora(x, deterministic)


def _residual(config: DecoderModel) -> nn.initializers.Initializer:
    """Return the initializer of matrices that add to the residual stream, two in each layer."""
    return nn.initializers.normal(config.initializer_range / (2 * config.layers) ** 0.5)
