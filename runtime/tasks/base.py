"""The seam between a job and its strategy: a task owns parameters, loss and metrics, and knows no devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import jax

from ..array_names import check_parameters
from ..config import Config
from ..data.base import Dataset
from ..models import draws_random
from ..plugins import hook
from ..state import Batch, Params, parts
from ..worker.progress import Reporter

Scalars = dict[str, jax.Array]


class Task(ABC):
    """The learning problem of a job. A user's task is a subclass with the same constructor.

    Args:
        config: the whole job.
        data: the data that it learns from.

    Raises UserError from the constructor if the two do not fit.
    """

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config = config
        self.data = data

    unit = "examples"
    """Unit of throughput."""

    units_per_example = 1

    whole_batch = False
    """True if the loss compares examples of a batch with each other, so that it is no mean over parts of the batch.

    `loss` and `evaluate` then get the global batch under every strategy, and the key of the first device. `jit` and
    `explicit` still divide the work; under `pmap` and `shard_map` each device gathers the batch and does all of it.
    """

    def units_seen(self, examples: int) -> dict[str, int]:
        """Return the tokens that the job has been trained on after so many examples; nothing for a task that counts none."""
        return {"tokens_seen": examples * self.units_per_example} if self.unit == "tokens" else {}

    @abstractmethod
    def init(self, key: jax.Array) -> Params:
        """Return the initial parameters, float32."""

    @abstractmethod
    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        """Return the mean loss over the batch, float32[], and further means to report. `key` is for dropout.

        If the batch is the whole training set, or is padded because a pod that has lost a host does not divide it, it has
        `weights`, float32[B], by which each example's share in the means is to be multiplied: 0 on padding, and 1 on average
        over all devices.
        """

    @property
    @hook
    def uses_key(self) -> bool:
        """Return whether `loss` depends on its key; if it does not, one call of `loss` may get the whole batch.

        A user's task, also a subclass of one of podrun's, is assumed to use it.
        """
        return self.config.task_is_users or draws_random(self.config)

    @abstractmethod
    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        """Return sums over the batch, float32[] each, weighted by batch["weights"], which is 0 on padding."""

    @abstractmethod
    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the metrics of an evaluation from its sums over all batches; `loss` is one of them."""

    predict: Callable[[Params, Batch], jax.Array] | None = None
    """Method that returns what an ensemble averages over its members, float32[B, ...]: probabilities, or values."""

    score: Callable[[jax.Array, Batch], Scalars] | None = None
    """Method that returns the sums of `evaluate` from the averaged predictions of an ensemble."""

    after_training: Callable[[Params, Reporter], str | None] | None = None
    """Method that returns text for the user.

    It is called in process 0 alone, with host copies of the parameters: no collectives there.
    """

    @hook
    def train_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return further metrics of a training step that follow from those of `loss`."""
        return metrics

    @property
    @hook
    def uses_result(self) -> bool:
        """Return whether `after_training` does anything; if so, a divided state is gathered for it."""
        return self.after_training is not None


def first_parameters(task: Task, key: jax.Array) -> Params:
    """Return what `task.init` returns. Raises UserError for parameters that cannot be trained or saved."""
    given = task.init(key)
    check_parameters(*parts(given))
    return given
