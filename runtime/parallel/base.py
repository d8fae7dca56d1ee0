"""The seam between what is trained and how it is spread over devices. All strategies give the same losses.

A strategy places the state, shards a batch, carries out a step and an evaluation, and gives a one-copy view of the state
for checkpoints. What a single device computes is here, written once; what differs is how the parts are brought together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ..state import Batch, Params, TrainState
from ..tasks.base import Scalars, Task

HostState = dict[str, Any]
"""`TrainState` as nested containers of numpy arrays, one copy: what a checkpoint holds."""


class Strategy(ABC):
    """One way of being parallel."""

    def __init__(
        self, task: Task, optimizer: optax.GradientTransformation, schedule: optax.Schedule, seed: int, accumulate: int
    ) -> None:
        self.task = task
        self.optimizer = optimizer
        self.schedule = schedule
        self.seed = seed
        self.accumulate = accumulate

    @abstractmethod
    def init(self) -> TrainState:
        """The initial state, already placed."""

    @abstractmethod
    def place(self, state: HostState) -> TrainState:
        """A state from a checkpoint, placed on the devices."""

    @abstractmethod
    def to_host(self, state: TrainState) -> HostState:
        """One copy of the state, as numpy arrays. Waits for the steps that it depends on."""

    @abstractmethod
    def shard(self, batch: Batch) -> Batch:
        """This process's part of a batch, on its devices. May be called from another thread."""

    @abstractmethod
    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Scalars]:
        """One step; returns before it is done. `state` must not be used again: its buffers are reused."""

    @abstractmethod
    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        """The task's sums over the global batch, the same in all processes."""

    # --- what every strategy computes ---

    def initial_state(self) -> TrainState:
        """To be traced. The same numbers for any number of processes and devices."""
        params = self.task.init(jax.random.fold_in(jax.random.key(self.seed), 0))
        return TrainState(jnp.int32(0), params, self.optimizer.init(params))

    def step_key(self, step: jax.Array, device: jax.Array | int) -> jax.Array:
        """Key for the dropout of one device in one step."""
        key = jax.random.fold_in(jax.random.key(self.seed), 1)
        return jax.random.fold_in(jax.random.fold_in(key, step), device)

    def gradients(self, params: Params, batch: Batch, key: jax.Array) -> tuple[Params, Scalars]:
        """Mean gradients and metrics over `batch`, computed in `accumulate` parts one after another."""
        grad = jax.value_and_grad(self.task.loss, has_aux=True)
        if self.accumulate == 1:
            (loss, metrics), grads = grad(params, batch, key)
            return grads, {"loss": loss, **metrics}
        parts = jax.tree.map(lambda x: x.reshape(self.accumulate, -1, *x.shape[1:]), batch)

        def add(total: Any, part: Any) -> tuple[Any, None]:
            (loss, metrics), grads = grad(params, part[0], part[1])
            return jax.tree.map(jnp.add, total, (grads, {"loss": loss, **metrics})), None

        keys = jax.random.split(key, self.accumulate)
        shapes = jax.eval_shape(lambda: grad(params, jax.tree.map(lambda x: x[0], parts), keys[0]))
        (loss, metrics), grads = shapes
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (grads, {"loss": loss, **metrics}))
        total, _ = jax.lax.scan(add, zero, (parts, keys))
        mean: tuple[Params, Scalars] = jax.tree.map(lambda x: x / self.accumulate, total)
        return mean

    def update(self, state: TrainState, grads: Params, metrics: Scalars) -> tuple[TrainState, Scalars]:
        """Applies the gradients of the global batch; adds their norm and the learning rate to the metrics."""
        updates, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {
            **metrics,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(self.schedule(state.step), jnp.float32),
        }
        return TrainState(state.step + 1, params, opt_state), metrics
