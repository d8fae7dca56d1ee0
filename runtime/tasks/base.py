"""The interface of a task: it defines parameters, loss and metrics, independently of devices and strategy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from ..array_names import check_parameters
from ..config import Config
from ..data.base import Dataset
from ..models import draws_random
from ..plugins import hook, signature_of
from ..state import Batch, Params, parts
from ..worker.progress import Reporter

Scalars = dict[str, jax.Array]

Sums = dict[str, Any]
"""Sums over the examples of an evaluation by name, float64[]; an ensemble also has `members`, its members' sums by name,
float64[members]. Of a task that collects, these are arrays of all examples, [N, ...], and of members [members, N, ...]."""


class Task(ABC):
    """The learning problem of a job. A user's task is a subclass with the same constructor.

    Args:
        config: the job.
        data: the data to learn from.

    Raises:
        UserError: the data does not fit the task.
    """

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config = config
        self.data = data

    memory: int | None = None
    """Bytes of a GPU's memory that programs can use; None on other devices. `make_task` sets it before the first loss."""

    unit = "examples"
    """Unit of throughput."""

    units_per_example = 1

    whole_batch = False
    """True if the loss depends on several examples at a time, so that it is not a mean over parts of the batch.

    `loss` and `evaluate` then get the global batch under every strategy, and the key of the first device. `jit` and
    `explicit` still divide the work; under `pmap` and `shard_map` each device gathers the batch and computes all of it.
    """

    has_step = False
    """True if the task computes the whole step itself, of a state of its own (see `own_step`)."""

    evaluates = True
    """False if the task has no evaluation."""

    collects = False
    """True if `evaluate` returns arrays for each example, [B, ...] by name, in place of sums.

    `summarize` then gets the values of all examples, numpy arrays [N, ...] in order, without padding, on every process:
    for metrics that are no means, such as an AUC. `score` of an ensemble returns such arrays as well.
    """

    stacked: tuple[str, ...] = ()
    """The `stacked` of the task's model: names of the outermost parameters whose arrays have a leading axis of layers."""

    gathers: tuple[str, ...] = ()
    """Names of parameters that the task itself gathers (`models.gathering`), where devices hold parts of them."""

    partition_rules: Mapping[str, int] = {}
    """The `partition_rules` of the task's model: which dimension of a parameter the mesh's axis `model` divides."""

    @hook
    def in_products(self) -> Task:
        """Return this task with JAX's matrix products in place of other kernels, so that its FLOPs can be counted."""
        return self

    @hook
    def in_pieces(self, examples: int) -> bool:
        """Return whether the loss of `examples` examples is computed in pieces, one after another, to save memory."""
        return False

    def units_seen(self, examples: int) -> dict[str, int]:
        """Return {"tokens_seen": ...} for `examples` trained examples; empty unless the task's unit is tokens."""
        return {"tokens_seen": examples * self.units_per_example} if self.unit == "tokens" else {}

    @abstractmethod
    def init(self, key: jax.Array) -> Params:
        """Return the initial parameters, float32."""

    @abstractmethod
    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        """Return the mean loss over the batch, float32[], and further means to report.

        Args:
            params: parameters, or `Variables` if the model has state.
            batch: arrays [B, ...]. If the batch is padded, or is the whole training set, it has `weights`, float32[B], by
                which the loss of each example must be multiplied: 0 on padding, and 1 on average over all devices.
            key: random key, for example for dropout.

        A subclass may take `step` as well, int32[]: the number of steps done before.
        """

    @cached_property
    def loss_takes_step(self) -> bool:
        """Return whether `loss` has a parameter named `step`."""
        signature = signature_of(self.loss)
        return signature is not None and "step" in signature.parameters

    @property
    @hook
    def uses_key(self) -> bool:
        """Return whether `loss` depends on its key. If not, a single call of `loss` may get the whole batch.

        A user's task, including subclasses of built-in tasks, is assumed to use it.
        """
        return self.config.task_is_users or draws_random(self.config)

    @abstractmethod
    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        """Return sums over the batch, float32[] each, weighted by batch["weights"], which is 0 on padding.

        If the task `collects`, return arrays [B, ...].
        """

    @abstractmethod
    def summarize(self, sums: Sums) -> dict[str, float]:
        """Compute the metrics of an evaluation, `loss` among them, from the sums over all batches.

        If the task `collects`, `sums` has the arrays of all examples.
        """

    predict: Callable[[Params, Batch], jax.Array] | None = None
    """Method that returns predictions, float32[B, ...], which an ensemble averages: probabilities or values."""

    score: Callable[[jax.Array, Batch], Scalars] | None = None
    """Method that computes the sums of `evaluate` from an ensemble's averaged predictions."""

    after_training: Callable[[Params, Reporter], str | None] | None = None
    """Method that returns text for the user after training.

    It is called on process 0 only, with parameters in host memory, and must not use collectives.
    """

    @hook
    def train_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the metrics of a training step to report, computed from the metrics that `loss` returned."""
        return metrics

    @hook
    def users_state(self, best: Any) -> Any:
        """Return the state to pass to a callback: the evaluated variables, or the state of a user's own step."""
        return best

    @property
    @hook
    def uses_result(self) -> bool:
        """Return whether `after_training` needs the trained parameters. If so, a divided state is gathered for it."""
        return self.after_training is not None


def first_parameters(task: Task, key: jax.Array) -> Params:
    """Return `task.init(key)`. Raises UserError if the parameters cannot be trained or saved."""
    given = task.init(key)
    if not task.has_step:
        check_parameters(*parts(given))
    return given


def means(batch: Batch, *values: jax.Array) -> jax.Array:
    """Return the mean of each of `values`, float32[B], weighted by the batch's `weights` if it has them.

    The means are computed together, because in a program over several devices each separate sum is a synchronisation.
    Weighted sums have two stages, because XLA may add the numbers sequentially, with a rounding error that grows with B.
    """
    each = jnp.stack(values)
    if "weights" not in batch:
        return each.mean(1)
    size = each.shape[1]
    rows = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
    return (each * batch["weights"]).reshape(len(each), rows, -1).mean(2).mean(1)
