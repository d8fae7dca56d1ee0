"""Task: predict the next token."""

from __future__ import annotations

import copy
import math

import jax
import jax.numpy as jnp
import numpy as np

from ..config import Config
from ..config.attention import with_kernel
from ..contract import UserError
from ..data.base import Dataset
from ..models import context_length, model_vocabulary
from ..state import Batch, Params
from ..worker.preempt import Preempted
from ..worker.progress import Reporter
from .base import Scalars, Task
from .next_token import Losses, NextToken, next_token

_BLOCK = 16  # tokens sampled between two checks for a stop
_Window = tuple[jax.Array, jax.Array]
"""The last tokens, int32[context], and their number, int32[]."""


_SMALLEST = float(np.finfo(np.float32).tiny)


class LanguageModel(Task):
    """Cross-entropy of the next token, in nats.

    A batch has `tokens`, int32[B, T + 1]; `weights`, float32[B] or [B, T], if some of the loss does not count; and, if rows
    have several documents, `segments`, int32[B, T]: the number of each token's document.
    """

    unit = "tokens"

    def __init__(self, config: Config, data: Dataset) -> None:
        super().__init__(config, data)
        self._context = context_length(config)
        self.units_per_example = self._context
        self._vocabulary = model_vocabulary(config, data.vocabulary)
        self._model = NextToken(config, self._vocabulary)
        if data.has_segments and not self._model.takes_segments:
            raise UserError(
                f"model {config.model.name}: takes no `segments`, so that documents in a row would attend to each other; "
                "give data.packing=concat, or let its call take `segments` (docs/plugins.md)"
            )
        self.stacked, self.partition_rules = self._model.stacked, self._model.partition_rules
        self.gathers = self._model.gathers
        self._prompt = self._encode_prompt()

    def in_products(self) -> LanguageModel:
        config = with_kernel(self.config, "xla")
        if config is self.config:
            return self
        task = copy.copy(self)
        task._model = NextToken(config, self._vocabulary)
        return task

    def _encode_prompt(self) -> np.ndarray:
        """Encode the prompt, before training, so that an error in it is reported early."""
        if self.data.tokenizer is None or not self.config.sample.tokens:
            return np.zeros(1, np.int32)
        try:
            ids = self.data.tokenizer.encode(self.config.sample.prompt).astype(np.int32)[-self._context :]
        except UserError as error:
            raise UserError(f"sample.prompt: {error}; give another prompt, or sample.tokens=0 for no text") from None
        return ids if len(ids) else np.zeros(1, np.int32)

    def init(self, key: jax.Array) -> Params:
        return self._model.init(key, self._context)

    def in_pieces(self, examples: int) -> bool:
        return self._model.pieces(examples, self._context, self.memory) > 1

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        tokens = self._model.losses(params, batch["tokens"], self.memory, key, batch.get("segments"))
        z_loss = self.config.z_loss
        # One mean for all: in a program over several devices each separate sum is a synchronisation.
        weights = batch.get("weights")
        means = [tokens.loss, tokens.correct, *([tokens.log_z**2] if z_loss else [])]
        if weights is not None and weights.ndim == 2:
            means = [x * weights for x in means]
        each = jnp.stack([x.mean(-1) for x in means])
        if weights is not None and weights.ndim == 1:
            each = each * weights
        loss, accuracy, *squares = each.mean(-1)
        if not squares:
            return loss, {"accuracy": accuracy}
        added = z_loss * squares[0]
        return loss + added, {"accuracy": accuracy, "z_loss": added}

    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        losses = self._model.losses(params, batch["tokens"], self.memory, segments=batch.get("segments"))
        return _sums(losses, batch["weights"])

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        loss = sums["loss"] / sums["count"]
        return {"loss": loss, "perplexity": _perplexity(loss), "accuracy": sums["correct"] / sums["count"]}

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Return probabilities, float32[B, T, V]."""
        return jax.nn.softmax(self._model.logits(params, batch["tokens"][:, :-1], segments=batch.get("segments")))

    def score(self, predictions: jax.Array, batch: Batch) -> Scalars:
        logits = jnp.log(jnp.maximum(predictions, _SMALLEST))
        return _sums(next_token(logits, batch["tokens"][:, 1:]), batch["weights"])

    @property
    def uses_result(self) -> bool:
        sampled = bool(self.config.sample.tokens) and self.data.tokenizer is not None
        return sampled or self.config.task_is_users  # a user's subclass may do something else

    def train_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        return {**metrics, "perplexity": _perplexity(metrics["loss"] - metrics.get("z_loss", 0.0))}

    def after_training(self, params: Params, reporter: Reporter) -> str | None:
        """Return a text of `sample.tokens` tokens that continues the prompt."""
        if not self.config.sample.tokens or self.data.tokenizer is None:
            return None
        ids = self._continue_prompt(params, jax.random.key(self.config.seed), reporter)
        return self.data.tokenizer.decode(np.concatenate([self._prompt, ids]))

    def _continue_prompt(self, params: Params, key: jax.Array, reporter: Reporter) -> np.ndarray:
        """Sample int32[sample.tokens] after the prompt. Raises Preempted if this process is asked to stop meanwhile."""
        tokens, start = self.config.sample.tokens, len(self._prompt)
        window = jnp.zeros(self._context, jnp.int32).at[:start].set(self._prompt)
        carry = window, jnp.int32(start)
        keys = jax.random.split(key, tokens)
        sample = jax.jit(self._sample)
        blocks = []
        for first in range(0, tokens, _BLOCK):
            if reporter.stopping:
                raise Preempted("stopped while text was sampled; the checkpoint of the last step is complete")
            block = np.minimum(
                np.arange(first, first + _BLOCK), tokens - 1
            )  # equal lengths, so that it is compiled once
            carry, ids = sample(params, carry, keys[block])
            blocks.append(np.asarray(ids))
        return np.concatenate(blocks)[:tokens]

    def _sample(self, params: Params, carry: _Window, keys: jax.Array) -> tuple[_Window, jax.Array]:
        """Sample one token per key, int32[len(keys)], each by a forward pass over the window; there is no KV cache."""
        sample = self.config.sample

        def step(carry: _Window, key: jax.Array) -> tuple[_Window, jax.Array]:
            window, length = carry
            logits = self._model.logits(params, window[None])[0, length - 1] / sample.temperature
            if self._vocabulary > self.data.vocabulary:  # the tokenizer has no text for the others
                logits = logits.at[self.data.vocabulary :].set(-jnp.inf)
            if 0 < sample.top_k < logits.shape[-1]:
                logits = jnp.where(logits < jax.lax.top_k(logits, sample.top_k)[0][-1], -jnp.inf, logits)
            token = jax.random.categorical(key, logits).astype(jnp.int32)
            full = length == self._context
            window = jnp.where(full, jnp.roll(window, -1), window)
            length = jnp.where(full, length, length + 1)
            return (window.at[length - 1].set(token), length), token

        return jax.lax.scan(step, carry, keys)


def _sums(each: Losses, weights: jax.Array) -> Scalars:
    return {"loss": (each.loss * weights).sum(), "correct": (each.correct * weights).sum(), "count": weights.sum()}


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))
