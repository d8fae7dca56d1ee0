"""The seam between what is trained and how it is spread over devices. All strategies give the same losses.

A strategy places the state, shards a batch, runs a step and an evaluation, and gives a view of the state for checkpoints.
The computation is written here, once; strategies differ in where arrays are and how the parts are brought together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..config import Config, Plugin
from ..contract import UserError
from ..distributed import as_numpy
from ..plugins import hook
from ..state import Batch, Params, StateDict, TrainState, from_dict, in_float32, new_state, parts, to_dict, variables
from ..tasks.base import Scalars, Task, first_parameters
from .arrays import in_parts, merged, spread, strongly_typed
from .initial import Initial
from .metrics import StepMetrics

Objective = Callable[[Params], jax.Array]
"""The loss of the global batch, float32[], with the right gradient on every device."""

Loss = tuple[jax.Array, tuple[Scalars, Any]]
"""The loss, float32[], its metrics and the model's new state."""

Results = tuple[tuple[Params, Scalars], Any]
"""Gradients and metrics, and the model's new state."""


class Strategy(ABC):
    """A parallelism strategy.

    Args:
        config: the whole job.
        task: the loss, its parameters and metrics.
        optimizer: an optax optimizer.
        schedule: learning rate by steps done, for the metrics.
    """

    divides_batch = True
    """False if every device that computes sees the whole batch."""

    model_per_device = False
    """True if each device trains a model of its own."""

    saves_in_parts = False
    """True if each process has only a part of the state, so that none can save it alone."""

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
        self.raised: tuple[str, ...] = ()  # parameters that `initial_state` had to turn into float32
        if task.whole_batch and self.accumulate > 1:
            raise UserError(
                f"accumulate: {self.accumulate} computes a batch in parts, but task {config.task} needs the whole "
                "batch (`whole_batch`); take accumulate: 1"
            )
        # A line search has computed the loss and gradient of the next step already.
        self.uses_line_search = config.optimizer.uses_line_search
        # A line search computes the loss of the global batch within the update, and a user's optimizer may.
        self.updates_outside = not (self.uses_line_search or isinstance(config.optimizer, Plugin))

    # --- placement ---

    @property
    def shares(self) -> int:
        """Return the number of equal parts of a global batch, each computed on a device of its own."""
        return jax.device_count() if self.divides_batch else 1

    @property
    def data_shard(self) -> tuple[int, int]:
        """Return (i, n): this process provides the i-th of n equal parts of each global batch."""
        return (jax.process_index(), jax.process_count()) if self.divides_batch else (0, 1)

    @property
    def models(self) -> int:
        """Return the number of models that are trained at once."""
        return jax.device_count() if self.model_per_device else 1

    @property
    def devices(self) -> int:
        """Return the number of devices that the work of a step is for, each of which counts in its MFU."""
        return jax.device_count() if self.divides_batch or self.model_per_device else 1

    @abstractmethod
    def init(self) -> TrainState:
        """Return the initial state, already placed."""

    @abstractmethod
    def abstract_state(self) -> TrainState:
        """Return the state's shapes, dtypes and shardings, without the arrays."""

    @abstractmethod
    def place(self, named: StateDict) -> TrainState:
        """Return a state that was restored from a checkpoint by `template`, whose arrays may be numpy's, on the devices."""

    @abstractmethod
    def shard(self, batch: Batch) -> Batch:
        """Put this process's part of a batch, [B / n, ...] (see `data_shard`), on its devices. Other threads may call it."""

    @abstractmethod
    def abstract_batch(self, batch: Batch) -> Batch:
        """Return the shapes, dtypes and shardings of what `shard` returns, for a global batch, [B, ...], or its shapes."""

    def savable(self, state: TrainState) -> StateDict:
        """Return the state for a checkpoint: one copy as numpy arrays, or global jax.Arrays if it `saves_in_parts`.

        On CPU the arrays are views of the devices' memory. Waits for the steps that it depends on.
        """
        return to_dict(self.global_state(state) if self.saves_in_parts else jax.tree.map(as_numpy, state))

    @hook
    def global_state(self, state: TrainState) -> TrainState:
        """Return a state that is saved in parts as arrays over all processes."""
        return state

    def template(self) -> StateDict:
        """Return the target of a restore: shapes, dtypes and shardings of what `place` is given."""
        return to_dict(self.abstract_state())

    def result(self, state: TrainState) -> Params:
        """Return one copy of the trained parameters, and state of the model, as numpy arrays. All processes must call it."""
        return jax.tree.map(np.asarray, self.one_copy(state.best))

    @hook
    def one_copy(self, params: Params) -> Params:
        """Return parameters that each process has whole on its own devices. All processes must call it."""
        return params

    # --- execution ---

    # Compiled by the concrete class: (state, batch) -> (state, metrics), and (params, batch) -> sums.
    _step: Any
    _evaluate: Any

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """Dispatch a step on what `shard` returned, and return at once. `state` must not be used again: its buffers are."""
        return self._step(state, batch)

    @hook
    def average(self, metrics: StepMetrics) -> StepMetrics:
        """Return the metrics of the whole pod from those of `step`. All processes must call it."""
        return metrics

    @hook
    def scores(self, state: TrainState, batch: Batch) -> dict[str, float]:
        """Return further metrics of a step about to be done, for steps that are logged. All processes must call it."""
        return {}

    def evaluate(self, state: TrainState, batch: Batch) -> Scalars:
        """Return the task's sums over the global batch, float32[] each, the same in all processes."""
        return self._evaluate(state.best, batch)

    def lowered(self, batch: Batch) -> jax.stages.Lowered:
        """Return the lowered step for a global batch of these shapes, [B, ...], not compiled yet."""
        return self._step.lower(self.abstract_state(), self.abstract_batch(batch))

    @hook
    def summarize(self, sums: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of an evaluation from the sums of `evaluate`, added up over its batches."""
        return self.task.summarize(sums)

    # --- the computation of every strategy, to be traced ---

    def initial_state(self, seed: jax.Array | int | None = None) -> TrainState:
        """Return the initial state, the same numbers for any number of processes and devices. The default seed is the job's.

        Raises UserError for a model with state and an optimizer with a line search.
        """
        return self._state_of(self._initial_key(seed))

    def _initial_key(self, seed: jax.Array | int | None = None) -> jax.Array:
        return jax.random.fold_in(jax.random.key(self.seed if seed is None else seed), 0)

    def _state_of(self, key: jax.Array) -> TrainState:
        params, model_state = parts(first_parameters(self.task, key))
        params, self.raised = in_float32(params)
        if model_state is not None and self.uses_line_search:
            raise UserError(
                f"optimizer {self.config.optimizer.name}: its line search computes the loss several times in a step, and "
                f"model {self.config.model.name} has state that changes each time; take another optimizer"
            )
        ema = None if self.ema is None else jax.tree.map(jnp.copy, params)
        return strongly_typed(TrainState(jnp.int32(0), params, self.optimizer.init(params), ema, model_state))

    @cached_property
    def initial(self) -> Initial:
        """Return the program of the initial state, for which `init` of the task is called once."""
        return Initial(self._state_of)

    def initialized(self, layout: Any) -> TrainState:
        """Return the initial state in `layout`: a sharding, or a tree of them. On CPU each process computes it whole."""
        key = self._initial_key()
        if jax.default_backend() != "cpu":
            state: TrainState = jax.jit(self.initial, out_shardings=layout)(key)
            return state
        return spread(self.initial.computed(key), layout)

    def step_key(self, step: jax.Array, device: jax.Array | int) -> jax.Array:
        """Return the key, of shape [], for the dropout of one device in one step, int32[]."""
        key = jax.random.fold_in(jax.random.key(self.seed), 1)
        return jax.random.fold_in(jax.random.fold_in(key, step), device)

    @hook
    def loss(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Loss:
        """Return the loss over the batch, [B, ...], that one call of `gradients` sees."""
        return self.share_loss(params, model_state, batch, key)

    def share_loss(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Loss:
        """Return the task's loss over examples, [B, ...], that have one key, its metrics, and the model's new state."""
        given = variables(params, model_state)
        loss, metrics = self.task.loss(given, batch, key)
        return loss, (metrics, new_state(given))

    @hook
    def split(self, batch: Batch, key: jax.Array) -> tuple[Batch, jax.Array]:
        """Return parts of a batch, [accumulate, B / accumulate, ...], and keys for them, [accumulate]."""
        return in_parts(batch, key, self.accumulate)

    @hook
    def empty_sum(self, zeros: tuple[Params, Scalars]) -> tuple[Params, Scalars]:
        """Lay zeros out like the gradients and metrics that will be added to them."""
        return zeros

    def gradients(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Results:
        """Return the results over `batch`, [B, ...]: means, and the model's new state.

        They are computed in `accumulate` parts one after another, each from the state before the step.
        """
        grad = jax.value_and_grad(self.loss, has_aux=True)
        if self.accumulate == 1:
            (loss, (metrics, after)), grads = grad(params, model_state, batch, key)
            return (grads, {"loss": loss, **metrics}), after
        parts, keys = self.split(batch, key)

        def add(total: Any, part: Any) -> tuple[Any, Any]:
            (loss, (metrics, after)), grads = grad(params, model_state, part[0], part[1])
            return jax.tree.map(jnp.add, total, (grads, {"loss": loss, **metrics})), after

        first = jax.tree.map(lambda x: x[0], parts)
        (loss, (metrics, _)), grads = jax.eval_shape(lambda: grad(params, model_state, first, keys[0]))
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (grads, {"loss": loss, **metrics}))
        total, states = jax.lax.scan(add, self.empty_sum(zero), (parts, keys))
        mean: tuple[Params, Scalars] = jax.tree.map(lambda x: x / self.accumulate, total)
        return mean, merged(states)

    def step_gradients(self, state: TrainState, objective: Objective, compute: Callable[[], Results]) -> Results:
        """Return the results of a step: those of the last line search, or else what `compute` returns."""
        if not self.uses_line_search:
            return compute()
        loss, grads = optax.value_and_grad_from_state(objective)(state.params, state=state.opt_state)
        return (grads, {"loss": loss}), None

    def update(
        self, state: TrainState, grads: Params, metrics: Scalars, objective: Objective | None, model_state: Any = None
    ) -> tuple[TrainState, StepMetrics]:
        """Apply the gradients of the global batch; add their norm and the length of the step to the metrics.

        `model_state` is the model's new state, the same on all devices. `objective` may be None if `updates_outside`.
        """
        updates, opt_state = self.optimizer.update(
            grads, state.opt_state, state.params, value=metrics["loss"], grad=grads, value_fn=objective
        )
        params = optax.apply_updates(state.params, updates)
        ema = None if self.ema is None else optax.incremental_update(params, state.ema, 1 - self.ema)
        length = optax.tree.get(opt_state, "learning_rate") if self.uses_line_search else self.schedule(state.step)
        length = jnp.asarray(length, jnp.float32)
        metrics = {**metrics, "grad_norm": optax.tree.norm(grads), "learning_rate": length}
        return strongly_typed(TrainState(state.step + 1, params, opt_state, ema, model_state)), StepMetrics.of(metrics)

    def update_outside(
        self, compute: Callable[[TrainState, Batch], Results], state: TrainState, batch: Batch
    ) -> tuple[TrainState, StepMetrics]:
        """Apply the results for the global batch that `compute`, each device's program, returns. Only if `updates_outside`.

        Compile time grows with the square of the number of arrays that go into and out of that program, so it gets no
        optimizer state.
        """
        (grads, metrics), after = compute(replace(state, opt_state=None, ema=None), batch)
        return self.update(state, grads, metrics, None, after)

    def restored(self, named: StateDict) -> TrainState:
        """Return the structure of the state with the arrays of a checkpoint."""
        return from_dict(self.abstract_state(), named)
