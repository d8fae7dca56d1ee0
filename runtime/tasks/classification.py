"""Task: predict a class label."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..config import Config
from ..contract import UserError
from ..data.base import Dataset
from ..state import Batch, Params
from .arrays import ArrayTask, first_targets
from .base import Scalars, means

_SMALLEST = float(np.finfo(np.float32).tiny)


class Classification(ArrayTask):
    """Softmax cross-entropy of the label, in nats."""

    def __init__(self, config: Config, data: Dataset) -> None:
        y = first_targets(config, data)
        if y.dtype.kind not in "iu" or y.ndim != 1:
            raise UserError(
                f"data {config.data.name}: its targets are {y.dtype}{list(y.shape[1:])}, but task {config.task} learns "
                "labels, one integer for each example; give data with labels, or take task: regression"
            )
        if data.outputs < 2:
            raise UserError(
                f"data {config.data.name}: it has {data.outputs} class, and task {config.task} needs at least 2; "
                "give data with examples of several classes"
            )
        super().__init__(config, data)

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        losses, correct = _compare(self.outputs(params, batch["x"], key), batch["y"])
        loss, accuracy = means(batch, losses, correct)
        return loss + self.penalty(params), {"accuracy": accuracy}

    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        return _sums(self.outputs(params, batch["x"]), batch)

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        return {"loss": sums["loss"] / sums["count"], "accuracy": sums["correct"] / sums["count"]}

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Return probabilities, float32[B, K]."""
        return jax.nn.softmax(self.outputs(params, batch["x"]))

    def score(self, predictions: jax.Array, batch: Batch) -> Scalars:
        return _sums(jnp.log(jnp.maximum(predictions, _SMALLEST)), batch)


def _compare(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (float32[B] losses, float32[B] 1 where the label is the most likely class) from float32[B, K] and int32[B]."""
    # A sum over one-hot vectors, not an index, whose result does not depend on the sharding.
    picked = (logits * jax.nn.one_hot(labels, logits.shape[-1])).sum(-1)
    return jax.nn.logsumexp(logits, axis=-1) - picked, (logits.argmax(-1) == labels).astype(jnp.float32)


def _sums(logits: jax.Array, batch: Batch) -> Scalars:
    losses, correct = _compare(logits, batch["y"])
    weights = batch["weights"]
    return {"loss": (losses * weights).sum(), "correct": (correct * weights).sum(), "count": weights.sum()}
