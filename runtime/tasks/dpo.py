"""Task: prefer one answer to another, by direct preference optimization (Rafailov et al. 2023)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..config import Config
from ..config.attention import with_kernel
from ..config.model import DecoderModel
from ..data.base import Dataset
from ..models import context_length, model_vocabulary
from ..state import Batch, Params
from .base import Scalars, Task, means
from .next_token import NextToken

_LORA = "_lora"
"""End of the names of the parameters of LoRA."""


class DPO(Task):
    """-log sigmoid of the difference between the rewards of the chosen and of the rejected answer.

    The reward of an answer is `beta` times log(p / q), where p is its probability by the trained model and q by the
    reference, the model that training begins with. The reference is the trained model without LoRA, so both share all other
    parameters.

    A batch has `tokens`, int32[B, 2, T + 1], the conversation with the chosen answer and the one with the rejected answer;
    `answers`, float32[B, 2, T], 1 for each predicted token that is of these answers; and perhaps `weights`, float32[B].
    """

    unit = "tokens"

    def __init__(self, config: Config, data: Dataset) -> None:
        super().__init__(config, data)
        self._context = context_length(config)
        self.units_per_example = 2 * self._context
        self._vocabulary = model_vocabulary(config, data.vocabulary)
        self._beta = config.dpo.beta
        self._make_models(config)
        self.stacked, self.partition_rules = self._model.stacked, self._model.partition_rules
        self.gathers = self._model.gathers

    def _make_models(self, config: Config) -> None:
        assert isinstance(config.model, DecoderModel)
        plain = config.model_copy(update={"model": config.model.model_copy(update={"lora": None})})
        self._model, self._reference = NextToken(config, self._vocabulary), NextToken(plain, self._vocabulary)

    def in_products(self) -> DPO:
        config = with_kernel(self.config, "xla")
        if config is self.config:
            return self
        task = copy.copy(self)
        task._make_models(config)
        return task

    def init(self, key: jax.Array) -> Params:
        return self._model.init(key, self._context)

    def in_pieces(self, examples: int) -> bool:
        return self._model.pieces(2 * examples, self._context, self.memory) > 1

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        names = "loss", "accuracy", "margin", "chosen_reward", "rejected_reward"
        measured = dict(zip(names, means(batch, *self._measures(params, batch, key)), strict=True))
        return measured.pop("loss"), measured

    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        loss, correct, margin, _, _ = self._measures(params, batch, None)
        weights = batch["weights"]
        sums = {"loss": loss, "correct": correct, "margin": margin}
        return {**{name: (each * weights).sum() for name, each in sums.items()}, "count": weights.sum()}

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        count = sums["count"]
        return {"loss": sums["loss"] / count, "accuracy": sums["correct"] / count, "margin": sums["margin"] / count}

    def _measures(self, params: Params, batch: Batch, key: jax.Array | None) -> tuple[jax.Array, ...]:
        """Return loss, 1 where the chosen answer has the higher reward, its margin, and both rewards, float32[B] each."""
        tokens, answers = batch["tokens"], batch["answers"]
        rows = tokens.reshape(-1, tokens.shape[-1])
        frozen = jax.lax.stop_gradient(without_lora(params))
        # The loss of a token is the negative logarithm of its probability.
        reference = self._reference.losses(frozen, rows, self.memory).loss
        ratios = reference - self._model.losses(params, rows, self.memory, key).loss
        rewards = self._beta * (ratios.reshape(answers.shape) * answers).sum(-1)
        chosen, rejected = rewards[:, 0], rewards[:, 1]
        margin = chosen - rejected
        return jax.nn.softplus(-margin), (margin > 0).astype(jnp.float32), margin, chosen, rejected


def without_lora(params: Mapping[str, Any]) -> Params:
    """Return the parameters, nested dictionaries, without LoRA's."""
    return {
        name: without_lora(inner) if isinstance(inner, Mapping) else inner
        for name, inner in params.items()
        if not name.endswith(_LORA)
    }
