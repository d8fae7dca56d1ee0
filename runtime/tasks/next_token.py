"""The losses of the next token by a language model, for the tasks that learn from tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..config import Config
from ..contract import UserError
from ..models import make_language_model
from ..models.adapter import name_of
from ..models.gathering import Rows, Tables, gathering_now
from ..state import Params

_PIECE = 64 << 20
"""Bytes of the logits, float32, that a device computes at once, or a larger part of its memory."""
_WHOLE, _MOST = 12, 48
"""Parts of a device's memory: logits up to the first are computed at once, larger ones in pieces up to the second."""


class Losses(NamedTuple):
    """Results for each token, float32[B, T] each."""

    loss: jax.Array
    """The cross-entropy, in nats."""
    correct: jax.Array
    """1 where the target is the most likely token, else 0."""
    log_z: jax.Array
    """Logarithm of the sum of the exponentials of the logits."""


class NextToken:
    """The job's language model, and the losses of its predictions.

    Args:
        config: the job.
        vocabulary: number of token ids of the model.

    Raises:
        UserError: the model does not take tokens.
    """

    def __init__(self, config: Config, vocabulary: int) -> None:
        self._model = make_language_model(config, vocabulary, jnp.dtype(config.precision.compute))
        self._vocabulary = vocabulary
        self._names = config.model.name, config.task
        self.takes_segments = self._model.takes_segments
        self.stacked, self.partition_rules = self._model.stacked, self._model.partition_rules
        tables = self._model.tables
        self.gathers = () if tables is None else (tables.embedding, tables.head)

    def init(self, key: jax.Array, context: int) -> Params:
        """Return the initial parameters, float32, for rows of `context` tokens."""
        return self._model.variables(key, jnp.zeros((1, context), jnp.int32))

    def logits(
        self, params: Params, tokens: jax.Array, key: jax.Array | None = None, segments: jax.Array | None = None
    ) -> jax.Array:
        """Return logits, float32[B, T, V], of tokens, int32[B, T]; with dropout if `key` is given.

        Raises UserError if the model's outputs have another shape.
        """
        logits: Any = self._model(self._gathered(params), tokens, key, segments)
        if logits.shape != (*tokens.shape, self._vocabulary):
            model, task = self._names
            raise UserError(
                f"model {model}: gives {logits.dtype}{list(logits.shape)} for tokens {list(tokens.shape)}, "
                f"but task {task} needs {[*tokens.shape, self._vocabulary]}: one value per token id"
            )
        return logits

    def pieces(self, rows: int, length: int, memory: int | None) -> int:
        """Return the number of pieces in which the logits, float32[rows, length, V], are computed.

        Pieces need less memory but more time: each adds to the gradient of the whole head, and is computed twice.

        Args:
            rows: examples of a device.
            length: tokens of each.
            memory: `Task.memory`.
        """
        size, memory = rows * length * self._vocabulary * 4, memory or 0
        if size <= memory // _WHOLE or not self._model.has_head:
            return 1
        return min(length, math.ceil(size / max(_PIECE, memory // _MOST)))

    def losses(
        self,
        params: Params,
        tokens: jax.Array,
        memory: int | None,
        key: jax.Array | None = None,
        segments: jax.Array | None = None,
    ) -> Losses:
        """Return the losses of tokens, int32[B, T + 1]. Large logits are computed in pieces.

        Args:
            params: parameters, or `Variables` if the model has state.
            tokens: rows of ids: each but the last of a row is followed by the one to predict.
            memory: `Task.memory`.
            key: random key for dropout; None: an evaluation.
            segments: number of each token's document, int32[B, T]; None: a row is one document.
        """
        rows, length = tokens.shape[0], tokens.shape[1] - 1
        pieces = self.pieces(rows, length, memory)
        by, tables = gathering_now(), self._model.tables
        if by is not None and tables is not None:
            hidden = self._model.hidden(self._gathered(params, tables.dtype), tokens[:, :-1], key, segments)
            matrix = next(x for path, x in jax.tree.leaves_with_path(params) if name_of(path) == tables.head)
            return _by_rows(by.rows(tables.head, matrix, tables.along, pieces), tables, hidden, tokens[:, 1:])
        if pieces <= 1:
            return next_token(self.logits(params, tokens[:, :-1], key, segments), tokens[:, 1:])
        hidden = self._model.hidden(params, tokens[:, :-1], key, segments)
        size = math.ceil(length / pieces)
        return _in_pieces(lambda x, y: next_token(self._model.head(params, x), y), size, hidden, tokens[:, 1:])

    def _gathered(self, params: Params, dtype: jax.typing.DTypeLike | None = None) -> Params:
        """Gather the parameters that the strategy leaves to the task. With `dtype`, they are converted first."""
        by = gathering_now()
        if by is None or not self.gathers:
            return params
        whole: Params = jax.tree.map_with_path(
            lambda path, x: by.gather(name_of(path), x, dtype) if name_of(path) in self.gathers else x, params
        )
        return whole


@jax.custom_vjp
def next_token(logits: jax.Array, targets: jax.Array) -> Losses:
    """Return the losses of logits, float32[B, T, V]."""
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A maximum, not an argmax, because XLA vectorises it on CPU.
    return Losses(log_z - picked, (picked >= logits.max(-1)).astype(jnp.float32), log_z)


def _next_token(logits: jax.Array, targets: jax.Array) -> tuple[Losses, tuple[jax.Array, ...]]:
    losses = next_token(logits, targets)
    return losses, (logits, targets, losses.log_z)


def _gradient(kept: tuple[jax.Array, ...], of: Losses) -> tuple[jax.Array, None]:
    """Return the gradient of the logits. JAX's own rule keeps their exponentials as well, in float32."""
    logits, targets, log_z = kept
    is_target = targets[..., None] == jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    probabilities = jnp.exp(logits - log_z[..., None])
    return probabilities * (of.loss + of.log_z)[..., None] - jnp.where(is_target, of.loss[..., None], 0), None


next_token.defvjp(_next_token, _gradient)


def _in_pieces(losses: Callable[[jax.Array, jax.Array], Losses], size: int, x: jax.Array, targets: jax.Array) -> Losses:
    """Compute `losses` of x, [B, T, C], and targets, int32[B, T], `size` tokens of each row at a time.

    The backward pass computes each piece again, so that only the logits of one piece are in memory at a time.
    """
    of_piece, weights = jax.closure_convert(losses, x[:, :size], targets[:, :size])
    weights = _of_each_share(weights, jax.lax.stop_gradient(x))  # without it, frozen weights would have gradients too
    whole = x.shape[1] // size * size

    def split(x: jax.Array) -> jax.Array:
        """Map [B, T, ...] to [pieces, B, size, ...], without the tokens at the end that do not fill a piece."""
        return jnp.moveaxis(x[:, :whole].reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)

    def turn(_: None, piece: tuple[jax.Array, jax.Array]) -> tuple[None, Losses]:
        return None, jax.checkpoint(of_piece, prevent_cse=False)(*piece, *weights)

    _, each = jax.lax.scan(turn, None, (split(x), split(targets)))
    parts = [jax.tree.map(lambda part: jnp.moveaxis(part, 0, 1).reshape(x.shape[0], whole), each)]
    if whole < x.shape[1]:
        rest = x[:, whole:], targets[:, whole:]
        of_rest, _ = jax.closure_convert(losses, *rest)
        parts.append(jax.checkpoint(of_rest)(*rest, *weights))
    return jax.tree.map(lambda *values: jnp.concatenate(values, 1), *parts)


class _Sums(NamedTuple):
    """Sums for each token over some rows of the head, float32[B, T] each."""

    picked: jax.Array
    """The logit of the target, if its row was among them, else 0."""
    top: jax.Array
    """The largest logit."""
    z: jax.Array
    """Sum of the exponentials of the logits less `top`."""


def _by_rows(head: Rows, tables: Tables, x: jax.Array, targets: jax.Array) -> Losses:
    """Compute the losses of x, [B, T, C], and targets, int32[B, T], by some rows of the head's matrix at a time.

    The backward pass gathers each piece of the matrix again, and computes its logits again. The gradient of a piece is
    complete then, so that it is divided over the devices at once, and no device ever holds that of the whole matrix.
    """
    wide = x.astype(jnp.float32)  # in which the gradients of the pieces are added

    def turn(sums: _Sums, piece: tuple[jax.Array, jax.Array]) -> tuple[_Sums, None]:
        rows, numbers = piece
        logits = tables.logits(wide.astype(x.dtype), head.gather(rows, tables.head_dtype))
        logits = jnp.where(numbers < 0, -jnp.inf, logits)
        top = jax.lax.stop_gradient(jnp.maximum(sums.top, logits.max(-1)))
        z = sums.z * jnp.exp(sums.top - top) + jnp.exp(logits - top[..., None]).sum(-1)
        picked = jnp.where(numbers == targets[..., None], logits, 0).sum(-1)
        return _Sums(sums.picked + picked, top, z), None

    zeros = jnp.zeros(targets.shape, jnp.float32)
    again = jax.checkpoint(turn, prevent_cse=len(head.numbers) == 1)
    first = _Sums(zeros, jnp.full_like(zeros, -jnp.inf), zeros)
    (picked, top, z), _ = jax.lax.scan(again, first, (head.pieces, head.numbers))
    log_z = top + jnp.log(z)
    return Losses(log_z - picked, (picked >= top).astype(jnp.float32), log_z)


@jax.custom_batching.custom_vmap
def _repeated(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    return weights


@_repeated.def_vmap
def _repeat(size: int, batched: Any, weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], list[bool]]:
    each = [
        w if is_batched else jnp.broadcast_to(w, (size, *w.shape))
        for w, is_batched in zip(weights, batched[0], strict=True)
    ]
    return each, [True] * len(each)


@jax.custom_vjp
def _of_each_share(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    """Return `weights`; under `vmap` over x, as in `jit` and `explicit`, return a copy for each share of the batch.

    The gradient of weights without copies is summed over the devices in each iteration of a loop; the gradients of the copies
    are summed once, after the loop.
    """
    return _repeated(weights, x)


_of_each_share.defvjp(lambda weights, x: (_repeated(weights, x), None), lambda _, gradients: (gradients, None))
