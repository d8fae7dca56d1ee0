"""Continue sequences of tokens by a language model, one token after another.

A `Decoder` keeps the keys and values of earlier tokens (a KV cache), so a token costs one pass over one token. Any other
model computes the whole sequence again for each token.

Letters in shapes: B sequences, T tokens of a call, S tokens that a sequence can have, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from ..state import Params
from .adapter import Model
from .decoder import Decoder
from .layers import Layers, whole_layer
from .linen import Linen

_LOWEST = 1e-6
"""Lowest temperature used as a divisor. Below it the most likely token is nearly certain."""


@dataclass(frozen=True)
class Sampling:
    """The way to draw the next token from the logits.

    Temperature is applied first, then `top_k`, `top_p` and `min_p`, in this order.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token.
        top_k: number of the most likely tokens that may be drawn; 0: all.
        top_p: tokens are drawn from the smallest set whose probabilities sum up to this; 1: from all (Holtzman et al. 2020).
        min_p: a token's probability must be at least this share of the largest one; 0: no limit (Nguyen et al. 2024).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def draw(sampling: Sampling, logits: jax.Array, keys: jax.Array) -> jax.Array:
    """Draw a token for each row of logits, float32[B, V], with keys [B]. Returns int32[B]."""
    if sampling.temperature == 0:
        return jnp.argmax(logits, -1).astype(jnp.int32)
    # Zero for the most likely token, so that no temperature, however low, makes it infinite.
    logits = (logits - logits.max(-1, keepdims=True)) / max(sampling.temperature, _LOWEST)
    if 0 < sampling.top_k < logits.shape[-1]:
        least = jax.lax.top_k(logits, sampling.top_k)[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if sampling.top_p < 1:
        ordered = jnp.sort(logits, -1, descending=True)
        likely = jax.nn.softmax(ordered)
        before = jnp.cumsum(likely, -1) - likely  # of all tokens that are more likely
        least = jnp.min(jnp.where(before < sampling.top_p, ordered, jnp.inf), -1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if sampling.min_p > 0:
        least = logits.max(-1, keepdims=True) + jnp.log(sampling.min_p)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)


class Written(NamedTuple):
    """Sequences as far as they are written.

    Attributes:
        tokens: int32[B, S].
        lengths: the number of tokens of each, int32[B].
        logits: of the next token, float32[B, V].
        memory: the model's cache of earlier tokens.
    """

    tokens: jax.Array
    lengths: jax.Array
    logits: jax.Array
    memory: Any


class Writer(ABC):
    """Continues sequences by a model. JAX traces all its methods."""

    @abstractmethod
    def read(self, params: Params, tokens: jax.Array, lengths: jax.Array, space: int) -> Written:
        """Read the prompts, int32[B, T], of `lengths` tokens each, int32[B], for sequences of `space` tokens in all."""

    @abstractmethod
    def next(self, params: Params, written: Written) -> tuple[jax.Array, Any]:
        """Return the logits after the last token of each sequence, float32[B, V], and the new memory."""

    def write(
        self, params: Params, written: Written, sampling: Sampling, keys: jax.Array, allowed: jax.Array, count: int
    ) -> tuple[Written, jax.Array]:
        """Write tokens.

        Args:
            params: the model's parameters.
            written: the sequences so far.
            sampling: how tokens are drawn.
            keys: a random key for each sequence, [B].
            allowed: whether each of the first token ids may be drawn, bool[N]; further ones may not.
            count: number of tokens for each sequence.

        Returns:
            The sequences, and the new tokens, int32[B, count].
        """

        def turn(written: Written, _: None) -> tuple[Written, jax.Array]:
            step_keys = jax.vmap(jax.random.fold_in)(keys, written.lengths)
            logits = written.logits[:, : len(allowed)]
            new = draw(sampling, jnp.where(allowed[: logits.shape[1]], logits, -jnp.inf), step_keys)
            rows = jnp.arange(len(new))
            tokens = written.tokens.at[rows, written.lengths].set(new)
            written = written._replace(tokens=tokens, lengths=written.lengths + 1)
            logits, memory = self.next(params, written)
            return written._replace(logits=logits, memory=memory), new

        written, new = jax.lax.scan(turn, written, None, length=count)
        return written, new.T


def writer_of(model: Model) -> Writer:
    """Return the writer of a model."""
    if isinstance(model, Linen) and isinstance(model.module, Decoder):
        return _Cached(model.module)
    return _Again(model)


class _Again(Writer):
    """Computes the whole sequence for each token."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def read(self, params: Params, tokens: jax.Array, lengths: jax.Array, space: int) -> Written:
        whole = jnp.pad(tokens, ((0, 0), (0, space - tokens.shape[1])))
        return Written(whole, lengths, self._logits(params, whole, lengths), None)

    def next(self, params: Params, written: Written) -> tuple[jax.Array, Any]:
        return self._logits(params, written.tokens, written.lengths), None

    def _logits(self, params: Params, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        logits: jax.Array = self._model(params, tokens)
        return logits[jnp.arange(len(lengths)), lengths - 1]


class _Cached(Writer):
    """Keeps the keys and values of earlier tokens, for each layer of the repeating pattern: [repeats, B, S, K, D]."""

    def __init__(self, module: Decoder) -> None:
        self._module = module

    def read(self, params: Params, tokens: jax.Array, lengths: jax.Array, space: int) -> Written:
        c = self._module.config
        shape = (c.layers // c.period, len(tokens), space, c.groups, c.size)
        empty = {"key": jnp.zeros(shape, self._module.dtype), "value": jnp.zeros(shape, self._module.dtype)}
        start = jnp.zeros_like(lengths)
        # What stands behind a shorter prompt is in the cache too, but is overwritten before a token attends to its place.
        x, memory = self._layers(params, [empty] * c.period, tokens, start)
        last = x[jnp.arange(len(lengths)), lengths - 1]
        whole = jnp.pad(tokens, ((0, 0), (0, space - tokens.shape[1])))
        return Written(whole, lengths, self._outputs(params, last), memory)

    def next(self, params: Params, written: Written) -> tuple[jax.Array, Any]:
        place = written.lengths - 1
        token = written.tokens[jnp.arange(len(place)), place]
        x, memory = self._layers(params, written.memory, token[:, None], place)
        return self._outputs(params, x[:, 0]), memory

    def _outputs(self, params: Params, x: jax.Array) -> jax.Array:
        return cast(jax.Array, self._module.apply({"params": params}, x, method="outputs"))

    def _layers(
        self, params: Params, memory: list[Any], tokens: jax.Array, start: jax.Array
    ) -> tuple[jax.Array, list[Any]]:
        """Apply all layers to tokens, int32[B, T], at positions from `start`, int32[B], on.

        Return [B, T, C], and the new memory.
        """
        positions = start[:, None] + jnp.arange(tokens.shape[1])
        # A dynamic RoPE turns by the length of the sequence. That of the context is what training had, whatever the length
        # of the text will be; and up to the context for which a published model was made it turns as transformers does.
        length = self._module.config.context
        x, rotations = self._module.apply({"params": params}, tokens, positions, length, method="embedded")
        layers: Layers = self._module.bind({"params": params}).layers
        blocks = [block.copy(parent=None) for block in layers.pattern]

        def turn(x: jax.Array, these: Any) -> tuple[jax.Array, list[Any]]:
            after = []
            for block, stack, cache in zip(blocks, *these, strict=True):
                variables = {"params": whole_layer(stack, x.dtype), "cache": {"attn": {**cache, "start": start}}}
                x, changed = cast(
                    "tuple[jax.Array, Any]", block.apply(variables, x, rotations, True, mutable=["cache"])
                )
                after.append({name: changed["cache"]["attn"][name] for name in cache})
            return x, after

        stacks = [params["layers"][f"block_{place}"] for place in range(len(blocks))]
        return jax.lax.scan(turn, x, (stacks, memory))
