"""Task: predict numbers."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ..config import Config
from ..contract import UserError
from ..data.base import Dataset
from ..state import Batch, Params
from .arrays import ArrayTask, first_targets
from .base import Scalars, means


class Regression(ArrayTask):
    """Mean squared error over examples and over the values of each."""

    def __init__(self, config: Config, data: Dataset) -> None:
        y = first_targets(config, data)
        if y.dtype.kind != "f" or y.shape[1:] != (data.outputs,):
            raise UserError(
                f"data {config.data.name}: its targets are {y.dtype}{list(y.shape[1:])}, but task {config.task} learns "
                f"float32[{data.outputs}] for each example; give data with values, or take task: classification"
            )
        super().__init__(config, data)

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        errors = _squared_errors(self.outputs(params, batch["x"], key), batch["y"])
        return means(batch, errors)[0] + self.penalty(params), {}

    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        return self.score(self.predict(params, batch), batch)

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        loss = sums["loss"] / sums["count"]
        return {"loss": loss, "rmse": math.sqrt(loss)}

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Return values, float32[B, K]."""
        return self.outputs(params, batch["x"])

    def score(self, predictions: jax.Array, batch: Batch) -> Scalars:
        weights = batch["weights"]
        return {"loss": (_squared_errors(predictions, batch["y"]) * weights).sum(), "count": weights.sum()}


def _squared_errors(values: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean squared error of each example, float32[B], from values and targets, float32[B, K]."""
    return jnp.mean((values - targets) ** 2, axis=-1)
