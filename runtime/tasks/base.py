"""The seam between a training job and how it is parallel: a task owns parameters, loss and metrics, and knows no devices."""

from __future__ import annotations

from abc import ABC, abstractmethod

import jax

from ..config import Config
from ..data.base import Dataset
from ..models import draws_random
from ..state import Batch, Params
from ..worker.progress import Reporter

Scalars = dict[str, jax.Array]


class Task(ABC):
    """What is learned. A user's task is a subclass with the same constructor.

    Args:
        config: the whole job.
        data: what it learns from.

    Raises UserError from the constructor if the two do not fit.
    """

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config = config
        self.data = data

    unit = "examples"
    """What throughput is counted in."""

    units_per_example = 1

    @abstractmethod
    def init(self, key: jax.Array) -> Params:
        """The initial parameters, float32."""

    @abstractmethod
    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        """The mean loss over the batch, float32[], and further means to report. `key` is for dropout.

        If the batch is the whole training set, it has `weights`, float32[B], by which each example's share in the means is
        to be multiplied: 0 on padding, and 1 on average over all devices.
        """

    @property
    def uses_key(self) -> bool:
        """Whether `loss` depends on its key; if it does not, the whole batch may be given to one call of it.

        A task of the user's may do anything with it, a subclass of podrun's as well.
        """
        return draws_random(self.config) or type(self).__module__.rpartition(".")[0] != __package__

    @abstractmethod
    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        """Sums over the batch, float32[] each, weighted by batch["weights"], which is 0 on padding."""

    @abstractmethod
    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of an evaluation from its sums over all batches; `loss` is one of them."""

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """What an ensemble averages over its members, float32[B, ...]: probabilities, or values."""
        raise NotImplementedError

    def score(self, predictions: jax.Array, batch: Batch) -> Scalars:
        """As `evaluate`, from the averaged predictions of an ensemble."""
        raise NotImplementedError

    def train_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Further metrics of a training step that follow from those of `loss`."""
        return metrics

    @property
    def uses_result(self) -> bool:
        """Whether `after_training` does anything: then a state in parts is put together for it."""
        return type(self).after_training is not Task.after_training

    def after_training(self, params: Params, reporter: Reporter) -> str | None:
        """Called in process 0 with host copies of the parameters. Returns text for the user. No collectives here."""
        return None
