"""The seam between what is trained and how it is spread over devices. All strategies give the same losses.

A strategy places the state, shards a batch, carries out a step and an evaluation, and gives a view of the state for
checkpoints. What is computed is here, written once; what differs is where it is and how the parts are brought together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..config import LBFGS, Config
from ..state import Batch, Params, StateDict, TrainState, from_dict, to_dict
from ..tasks.base import Scalars, Task
from .metrics import StepMetrics

Objective = Callable[[Params], jax.Array]
"""The loss of the global batch, float32[], with the right gradient on every device."""


class Strategy(ABC):
    """One way of being parallel.

    Args:
        config: the whole job.
        task: what is learned.
        optimizer: optax's.
        schedule: learning rate by steps done, for the metrics.
    """

    saves_in_parts = False
    """Whether no process can save the state alone, because each has only a part of it."""

    def __init__(
        self, config: Config, task: Task, optimizer: optax.GradientTransformation, schedule: optax.Schedule
    ) -> None:
        self.config = config
        self.task = task
        self.optimizer = optax.with_extra_args_support(optimizer)
        self.schedule = schedule
        self.seed = config.seed
        self.accumulate = config.accumulate
        self.ema = config.ema
        # A line search has computed the loss and gradient of the next step already.
        self.searches_lines = isinstance(config.optimizer, LBFGS) and config.optimizer.line_search is not None

    # --- where things are ---

    @property
    def shares(self) -> int:
        """How many equal parts a global batch has, each computed on a device of its own."""
        return jax.device_count()

    @property
    def feeds(self) -> tuple[int, int]:
        """(i, n): this process provides the i-th of n equal parts of each global batch."""
        return jax.process_index(), jax.process_count()

    @abstractmethod
    def init(self) -> TrainState:
        """The initial state, already placed."""

    @abstractmethod
    def abstract_state(self) -> TrainState:
        """The state's shapes, dtypes and shardings, without the arrays."""

    @abstractmethod
    def place(self, named: StateDict) -> TrainState:
        """A state from a checkpoint, restored as `template` says, on the devices."""

    @abstractmethod
    def shard(self, batch: Batch) -> Batch:
        """This process's part of a batch, on its devices. May be called from another thread."""

    @abstractmethod
    def abstract_batch(self, batch: Batch) -> Batch:
        """What `shard` gives, as shapes, dtypes and shardings; `batch` has the shapes of the global one."""

    def savable(self, state: TrainState) -> StateDict:
        """For a checkpoint: one copy as numpy arrays, or jax.Arrays over all processes if it `saves_in_parts`.

        Waits for the steps that it depends on.
        """
        return to_dict(jax.tree.map(np.asarray, state))

    def template(self) -> StateDict:
        """What a checkpoint is to be restored into: arrays as `savable` gives them, of any value."""
        return to_dict(jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), self.abstract_state()))

    def result(self, state: TrainState) -> Params:
        """One copy of the trained parameters as numpy arrays. All processes must call it."""
        return jax.tree.map(np.asarray, state.best_params)

    # --- what is done ---

    # Compiled by the concrete class: (state, batch) -> (state, metrics), and (params, batch) -> sums.
    _step: Any
    _evaluate: Any

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """One step; returns before it is done. `state` must not be used again: its buffers are reused."""
        return self._step(state, batch)

    def average(self, metrics: StepMetrics) -> StepMetrics:
        """Of the whole pod, from what `step` gave. All processes must call it."""
        return metrics

    def scores(self, state: TrainState, batch: Batch) -> dict[str, float]:
        """Return further metrics of a step about to be done, for steps that are logged. All processes must call it."""
        return {}

    def evaluate(self, state: TrainState, batch: Batch) -> Scalars:
        """The task's sums over the global batch, the same in all processes."""
        return self._evaluate(state.best_params, batch)

    def lowered(self, batch: Batch) -> jax.stages.Lowered:
        """The step for a global batch of these shapes, not compiled yet."""
        return self._step.lower(self.abstract_state(), self.abstract_batch(batch))

    def summarize(self, sums: dict[str, Any]) -> dict[str, Any]:
        """The metrics of an evaluation from the sums of `evaluate`, added up over its batches."""
        return self.task.summarize(sums)

    # --- what every strategy computes; to be traced ---

    def initial_state(self, seed: jax.Array | int | None = None) -> TrainState:
        """The same numbers for any number of processes and devices."""
        params = self.task.init(jax.random.fold_in(jax.random.key(self.seed if seed is None else seed), 0))
        ema = None if self.ema is None else jax.tree.map(jnp.copy, params)
        return _strongly_typed(TrainState(jnp.int32(0), params, self.optimizer.init(params), ema))

    def step_key(self, step: jax.Array, device: jax.Array | int) -> jax.Array:
        """Key for the dropout of one device in one step."""
        key = jax.random.fold_in(jax.random.key(self.seed), 1)
        return jax.random.fold_in(jax.random.fold_in(key, step), device)

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        """The task's loss and metrics of what one call of `gradients` sees."""
        return self.task.loss(params, batch, key)

    def split(self, batch: Batch, key: jax.Array) -> tuple[Batch, jax.Array]:
        """`accumulate` parts of a batch and keys for them, along a new leading axis."""
        parts = jax.tree.map(lambda x: x.reshape(self.accumulate, -1, *x.shape[1:]), batch)
        return parts, jax.random.split(key, self.accumulate)

    def empty_sum(self, zeros: tuple[Params, Scalars]) -> tuple[Params, Scalars]:
        """Zeros for gradients and metrics, laid out as those are that will be added to them."""
        return zeros

    def gradients(self, params: Params, batch: Batch, key: jax.Array) -> tuple[Params, Scalars]:
        """Mean gradients and metrics over `batch`, computed in `accumulate` parts one after another."""
        grad = jax.value_and_grad(self.loss, has_aux=True)
        if self.accumulate == 1:
            (loss, metrics), grads = grad(params, batch, key)
            return grads, {"loss": loss, **metrics}
        parts, keys = self.split(batch, key)

        def add(total: Any, part: Any) -> tuple[Any, None]:
            (loss, metrics), grads = grad(params, part[0], part[1])
            return jax.tree.map(jnp.add, total, (grads, {"loss": loss, **metrics})), None

        shapes = jax.eval_shape(lambda: grad(params, jax.tree.map(lambda x: x[0], parts), keys[0]))
        (loss, metrics), grads = shapes
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (grads, {"loss": loss, **metrics}))
        total, _ = jax.lax.scan(add, self.empty_sum(zero), (parts, keys))
        mean: tuple[Params, Scalars] = jax.tree.map(lambda x: x / self.accumulate, total)
        return mean

    def stored_gradients(self, state: TrainState, objective: Objective) -> tuple[Params, Scalars]:
        """Loss and gradient where the last line search ended, which it has left in the state."""
        value_and_grad = optax.value_and_grad_from_state(objective)
        loss, grads = value_and_grad(state.params, state=state.opt_state)
        return grads, {"loss": loss}

    def update(
        self, state: TrainState, grads: Params, metrics: Scalars, objective: Objective
    ) -> tuple[TrainState, StepMetrics]:
        """Applies the gradients of the global batch; adds their norm and the length of the step to the metrics."""
        updates, opt_state = self.optimizer.update(
            grads, state.opt_state, state.params, value=metrics["loss"], grad=grads, value_fn=objective
        )
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if self.ema is not None:
            ema = optax.incremental_update(params, ema, 1 - self.ema)
        length = optax.tree.get(opt_state, "learning_rate") if self.searches_lines else self.schedule(state.step)
        metrics = {
            **metrics,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(length, jnp.float32),
        }
        return _strongly_typed(TrainState(state.step + 1, params, opt_state, ema)), StepMetrics.of(metrics)

    def restored(self, named: StateDict) -> TrainState:
        """The structure of the state with the arrays of a checkpoint."""
        return from_dict(self.abstract_state(), named)


def _strongly_typed(state: TrainState) -> TrainState:
    """Some optimizers begin with the types of Python's numbers; the second step would be compiled anew."""
    typed: TrainState = jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.asarray(x).dtype), state)
    return typed


def with_sharding(tree: Any, sharding: Any) -> Any:
    """Shapes and dtypes of `tree` with shardings: one for all, or a tree of them."""
    shardings = sharding if not isinstance(sharding, jax.sharding.Sharding) else jax.tree.map(lambda _: sharding, tree)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)
