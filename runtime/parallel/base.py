"""The interface of parallelism strategies, and the training step that they share. All strategies give the same losses.

A strategy places the state, shards a batch, runs a step and an evaluation, and returns the state for checkpoints. The
step is computed here; strategies differ in where arrays are and in how the devices' results are reduced.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..config import Config, Plugin
from ..config.model import LORA_PARAMETERS
from ..contract import UserError
from ..devices import Devices
from ..distributed import as_numpy
from ..events import Metrics
from ..executables.pod_executables import Executables
from ..plugins import hook
from ..state import (
    Batch,
    Params,
    StateDict,
    TrainState,
    from_dict,
    in_float32,
    merge,
    new_state,
    parts,
    select,
    to_dict,
    variables,
)
from ..tasks.base import Scalars, Sums, Task, first_parameters
from ..tasks.collecting import collect, joined, numbers
from ..trainable import trained
from .arrays import is_float, merge_model_states, microbatches, put_global, strip_weak_types
from .initial import SEED, InitialState
from .layout import Partition
from .metrics import StepMetrics

Objective = Callable[[Params], jax.Array]
"""Maps parameters to the loss of the global batch, float32[]. Its gradient is the global one on every device."""

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
        pod: the devices of the pod; None: those that are here.
    """

    divides_batch = True
    """True if each device computes a share of the global batch; False if each computes all of it."""

    in_shares = True
    """True if the loss of each device's share of a batch is computed separately."""

    model_per_device = False
    """True if each device trains its own model."""

    is_one_program = False
    """True if all processes run the same `_step` and `_evaluate` together, so that one of them can compile for all."""

    is_global = False
    """True if a step is one program of global arrays, which all processes must compile alike."""

    partition = Partition()
    """Division of the state's arrays."""

    saves_in_parts = False
    """True if each process holds only a part of the state, so that all of them write a checkpoint."""

    def __init__(
        self,
        config: Config,
        task: Task,
        optimizer: optax.GradientTransformation,
        schedule: optax.Schedule,
        pod: Devices | None = None,
    ) -> None:
        self.pod = pod or Devices.here()
        self.config = config
        self.task = task
        self.optimizer = optax.with_extra_args_support(optimizer)
        self.schedule = schedule
        self.seed = config.seed
        self.accumulate = config.accumulate
        self.ema = config.ema
        self._executables: Executables | None = None
        self.gradient_factor = 1.0
        """Another one rehearses a process that computes wrongly (`--inject wrong_sum`), in comparisons, and in steps unless
        `is_global`."""
        self.raised: tuple[str, ...] = ()  # parameters that `initial_state` has converted to float32
        if task.whole_batch and self.accumulate > 1:
            raise UserError(
                f"accumulate: {self.accumulate} computes a batch in parts, but task {config.task} needs the whole "
                "batch (`whole_batch`); set accumulate: 1"
            )
        # Its last evaluation is the loss and gradient of the next step.
        self.uses_line_search = config.optimizer.uses_line_search
        # A line search evaluates the loss of the global batch in the update, and a user's optimizer may do so too.
        self.updates_outside = not (self.uses_line_search or isinstance(config.optimizer, Plugin))

    # --- placement ---

    @property
    def shares(self) -> int:
        """Return the number of equal shares of a global batch: one for each device, or for each row of an axis `model`."""
        return self.pod.count // self.config.parallel.grid.model if self.divides_batch else 1

    @property
    @hook
    def data_shard(self) -> tuple[int, int]:
        """Return (i, n): this process provides the i-th of n equal parts of each batch. Others may provide the same part."""
        return (self.pod.process, self.pod.processes) if self.divides_batch else (0, 1)

    @property
    def models(self) -> int:
        """Return the number of models trained at once."""
        return self.pod.count if self.model_per_device else 1

    @property
    def devices(self) -> int:
        """Return the number of devices whose peak FLOP/s the MFU of a step is relative to."""
        return self.pod.count if self.divides_batch or self.model_per_device else 1

    @property
    def parts(self) -> int:
        """Return the number of equal parts of a global batch whose losses are computed separately."""
        return self.shares * self.accumulate if self.in_shares and not self.task.whole_batch else 1

    @abstractmethod
    def init(self) -> TrainState:
        """Return the initial state, placed on the devices."""

    @abstractmethod
    def abstract_state(self) -> TrainState:
        """Return the state's shapes, dtypes and shardings, as ShapeDtypeStructs."""

    @abstractmethod
    def place(self, named: StateDict) -> TrainState:
        """Place a restored state on the devices. It has the structure of `template`; its arrays may be numpy arrays."""

    @abstractmethod
    def shard(self, batch: Batch) -> Batch:
        """Put this process's part of a batch, [B / n, ...] (see `data_shard`), on its devices. Thread-safe."""

    @abstractmethod
    def abstract_batch(self, batch: Batch) -> Batch:
        """Return the result of `shard` as ShapeDtypeStructs, for a global batch, [B, ...], or its ShapeDtypeStructs."""

    @hook
    def examples(self, batch: Batch) -> Batch:
        """Return the examples, [B / shares, ...], in one device's block of a result of `shard`. JAX traces it."""
        return batch

    def savable(self, state: TrainState) -> StateDict:
        """Return the state for a checkpoint: one copy as numpy arrays, or global jax.Arrays if it `saves_in_parts`.

        Frozen parameters remain on the devices, because most checkpoints need no copy of them.

        Waits until the steps before it are computed. On CPU, numpy arrays are views of the devices' memory.
        """
        if self.saves_in_parts:
            return to_dict(self.global_state(state))
        part = jax.tree.map(as_numpy, replace(state, params=self.trained(state.params)))
        return to_dict(replace(part, params=merge(part.params, state.params)))

    @hook
    def global_state(self, state: TrainState) -> TrainState:
        """Return a state that is saved in parts as global arrays, over all processes."""
        return state

    def template(self) -> StateDict:
        """Return the target of a restore: the ShapeDtypeStructs of the state that `place` takes."""
        return to_dict(self.abstract_state())

    def result(self, state: TrainState) -> Params:
        """Return one copy of the trained parameters and model state, as numpy arrays. All processes must call it."""
        return jax.tree.map(np.asarray, self.one_copy(state.best))

    @hook
    def one_copy(self, params: Params) -> Params:
        """Return the parameters with a full copy on each process's own devices. All processes must call it."""
        return params

    # --- execution ---

    # Compiled by the concrete class: (state, batch) -> (state, metrics), and (params, batch) -> sums.
    _step: Any
    _evaluate: Any

    def share_executables(self, executables: Executables) -> None:
        """Let one process compile for all, and use executables that were compiled earlier."""
        self._executables = executables
        if self.is_one_program:
            self._step, self._evaluate = executables.shared(self._step), executables.shared(self._evaluate)

    def take_place_of(self, other: Strategy) -> None:
        """Use all programs of another strategy of the same job but its step, which only this process compiles."""
        self._executables, self._evaluate = other._executables, other._evaluate
        if self._executables and self.is_one_program:
            self._step = self._executables.alone(self._step)

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """Dispatch a step without waiting for it. It donates `state`, which must not be used again.

        Args:
            state: the state before the step.
            batch: what `shard` returned.
        """
        return self._step(state, batch)

    @hook
    def average(self, metrics: StepMetrics) -> StepMetrics:
        """Return the pod's mean of the metrics that `step` returned. All processes must call it."""
        return metrics

    @hook
    def scores(self, state: TrainState, batch: Batch) -> dict[str, float]:
        """Return further metrics, computed before a step that is logged. All processes must call it."""
        return {}

    def evaluate(self, state: TrainState, batch: Batch) -> Scalars:
        """Return the task's sums over the global batch, float32[] each, the same in all processes.

        If the task collects, return what it collects of the batch, [B, ...] each.
        """
        return self._evaluate(state.best, batch)

    def evaluated(self, params: Params, batch: Batch) -> Scalars:
        """Return the task's sums over a batch, or what it collects of the batch. JAX traces it."""
        if self.task.collects:
            return collect(self.config.task, self.task.evaluate, params, batch)
        return self.task.evaluate(params, batch)

    @hook
    def sums(self, state: TrainState, batches: Iterable[Batch]) -> Sums:
        """Return the results of `evaluate` for all batches together.

        Each batch is a result of `shard`. All processes must call it.
        """
        if self.task.collects:
            return self.joined(jax.device_get(self.evaluate(state, batch)) for batch in batches)
        return self.added(state, batches)

    @hook
    def joined(self, parts: Iterable[Sums]) -> Sums:
        """Return the arrays of all examples, [N, ...], that were collected of batches."""
        return joined(self.config.task, parts)

    def added(self, state: TrainState, batches: Iterable[Batch]) -> Sums:
        """Add up the results of `evaluate` over batches.

        The sums are float64, on the host, because float32 cannot count large sets exactly.
        """
        sums: Sums | None = None
        for batch in batches:
            wide = jax.tree.map(np.float64, jax.device_get(self.evaluate(state, batch)))
            sums = wide if sums is None else jax.tree.map(np.add, sums, wide)
        assert sums is not None  # an evaluation has a batch
        return sums

    @hook
    def together(self, sets: Sequence[Sums]) -> Sums:
        """Combine the results of `sums` for several sets into the result for all their examples."""
        if self.task.collects:
            return {name: np.concatenate([each[name] for each in sets]) for name in sets[0]}
        whole: Sums = jax.tree.map(lambda *each: np.sum(each, axis=0), *sets)
        return whole

    def lowered(self, batch: Batch) -> jax.stages.Lowered:
        """Return the step, lowered but not compiled, for a global batch, [B, ...], or its ShapeDtypeStructs."""
        return self._step.lower(self.abstract_state(), self.abstract_batch(batch))

    def lowered_programs(self, batch: Batch, evaluation: Batch) -> dict[str, jax.stages.Lowered]:
        """Return the programs of the pod that a run of the job compiles before its first step and later, by name.

        Args:
            batch: ShapeDtypeStructs of a global batch of training, [B, ...].
            evaluation: the same of an evaluation.
        """
        state = self.abstract_state()
        layout = jax.tree.map(lambda array: array.sharding, state)
        if self.pod.are_here:  # JAX lowers no pmap of several processes for ShapeDtypeStructs
            state = put_global(jax.tree.map(lambda array: np.zeros(array.shape, array.dtype), state), layout)
            batch, evaluation = self.shard(self._zeros(batch)), self.shard(self._zeros(evaluation))
        else:
            batch, evaluation = self.abstract_batch(batch), self.abstract_batch(evaluation)
        programs = {"step": self._step.lower(state, batch), "evaluation": self._evaluate.lower(state.best, evaluation)}
        if not self.pod.is_cpu:
            programs["initialization"] = jax.jit(self.initial, out_shardings=layout).lower(SEED)
        return programs

    def _zeros(self, batch: Batch) -> Batch:
        """Return this process's part of a global batch of zeros."""
        parts = self.data_shard[1]
        return {name: np.zeros((x.shape[0] // parts, *x.shape[1:]), x.dtype) for name, x in batch.items()}

    @hook
    def summarize(self, sums: Sums) -> Metrics:
        """Return the metrics of an evaluation. `sums`: the result of `sums` or `together`."""
        return self.summary(sums)

    def summary(self, sums: Sums) -> dict[str, float]:
        """Return what the task computes from sums, or from what it collected."""
        metrics = self.task.summarize(sums)
        return numbers(self.config.task, metrics) if self.task.collects else metrics

    # --- the computation of every strategy; JAX traces it ---

    @hook
    def initial_state(self, seed: jax.Array | int | None = None) -> TrainState:
        """Return the initial state, which is the same for any number of processes and devices.

        Args:
            seed: uint32[] or a number; the job's seed by default.

        Raises:
            UserError: the model has state and the optimizer a line search.
        """
        key = jax.random.fold_in(jax.random.key(self.seed if seed is None else seed), 0)
        params, model_state = parts(first_parameters(self.task, key))
        params, self.raised = in_float32(params)
        params = self._stored(params)
        if model_state is not None and self.uses_line_search:
            raise UserError(
                f"optimizer {self.config.optimizer.name}: its line search computes the loss several times in a step, and "
                f"model {self.config.model.name} has state that changes each time; take another optimizer"
            )
        return self._first_state(params, model_state)

    def _first_state(self, params: Params, model_state: Any = None) -> TrainState:
        ema = None if self.ema is None else jax.tree.map(jnp.copy, self.trained(params))
        opt_state = self.optimizer.init(self.trained(params))
        return strip_weak_types(TrainState(jnp.int32(0), params, opt_state, ema, model_state))

    def init_from(self, load: Callable[[Params], Params]) -> TrainState:
        """Return the initial state with given parameters, placed on the devices. LoRA's parameters are not among those given.

        Args:
            load: called with ShapeDtypeStructs with shardings; returns the parameters in this form.
        """
        form = self.abstract_state()
        layout = jax.tree.map(lambda array: array.sharding, form)
        make = jax.jit(self._first_state, donate_argnums=0, out_shardings=layout)
        if getattr(self.config.model, "lora", None) is None:
            return self.place(to_dict(make(load(form.params))))
        added = trained(form.params, LORA_PARAMETERS)
        given = load(select(form.params, jax.tree.map(operator.not_, added)))

        def of_added(state: TrainState) -> TrainState:
            return replace(state, params=select(state.params, added), opt_state=None, ema=None, model_state=None)

        initial = InitialState(lambda seed: of_added(self.initial_state(seed)))
        params = merge(given, self.initialized(of_added(layout), initial).params)
        return self.place(to_dict(make(params)))

    def trained(self, params: Params) -> Params:
        """Return a tree like the parameters without those that are frozen."""
        if self.config.trained_names is None:
            return params
        return select(params, trained(params, self.config.trained_names))

    def _stored(self, params: Params) -> Params:
        """Convert the parameters that are frozen to the data type in which they are kept."""
        if self.config.precision.frozen == "float32":
            return params
        mask = trained(params, self.config.trained_names)
        dtype = jnp.dtype(self.config.precision.frozen)
        return jax.tree.map(lambda x, keep: x if keep or not is_float(x) else x.astype(dtype), params, mask)

    @cached_property
    def initial(self) -> InitialState:
        """Return the compiled function that makes the initial state. It traces the task's `init` once."""
        return InitialState(self.initial_state)

    def initialized(self, layout: Any, initial: InitialState | None = None) -> TrainState:
        """Return the initial state on the devices. On CPU each process computes all of it.

        Args:
            layout: the shardings of the state: one for all arrays, or a tree of them.
            initial: computes the part of the state that is needed; None: all of it is computed.
        """
        initial = initial or self.initial
        seed = np.uint32(self.seed & 0xFFFFFFFF)  # more bits `jax.random.key` does not look at, without 64-bit numbers
        if not self.pod.is_cpu:
            init = jax.jit(initial, out_shardings=layout)
            state: TrainState = (self._executables.shared(init) if self._executables else init)(seed)
            return state
        return put_global(initial.compute(seed, self._executables.local if self._executables else None), layout)

    def step_key(self, step: jax.Array, device: jax.Array | int) -> jax.Array:
        """Return the key, [], for the dropout of one device in one step, int32[]."""
        key = jax.random.fold_in(jax.random.key(self.seed), 1)
        return jax.random.fold_in(jax.random.fold_in(key, step), device)

    def inputs(self, state: TrainState) -> Any:
        """Return the inputs of a loss besides parameters and batch: the model's state, with the step if the loss takes it.

        It is the argument `model_state` of the functions below.
        """
        return (state.model_state, state.step) if self.task.loss_takes_step else state.model_state

    @hook
    def loss(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Loss:
        """Return the loss of a batch, [B, ...], which `gradients` differentiates."""
        return self.share_loss(params, model_state, batch, key)

    def share_loss(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Loss:
        """Return the task's loss of examples, [B, ...], that share a key, with its metrics and the model's new state."""
        step = {}
        if self.task.loss_takes_step:
            model_state, step["step"] = model_state
        given = variables(params, model_state)
        loss, metrics = self.task.loss(given, batch, key, **step)
        return loss, (metrics, new_state(given))

    @hook
    def split(self, batch: Batch, key: jax.Array) -> tuple[Batch, jax.Array]:
        """Split a batch into microbatches, [accumulate, B / accumulate, ...], and a random key into one for each of them."""
        return microbatches(batch, key, self.accumulate)

    @hook
    def empty_sum(self, zeros: tuple[Params, Scalars]) -> tuple[Params, Scalars]:
        """Give zeros the shardings of the gradients and metrics that will be added to them."""
        return zeros

    def gradients(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Results:
        """Return the mean gradients and metrics over a batch, [B, ...], and the model's new state.

        Gradients are those of the parameters that are trained.
        With `accumulate` they are computed in microbatches one after another, each from the model state before the step.
        """
        (grads, metrics), after = self._mean_gradients(params, model_state, batch, key)
        if self.gradient_factor != 1 and not self.is_global:
            grads = jax.tree.map(lambda x: x * self.gradient_factor, grads)
        return (grads, metrics), after

    def _mean_gradients(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Results:

        def loss(part: Params, *rest: Any) -> Loss:
            return self.loss(merge(part, params), *rest)

        grad = jax.value_and_grad(loss, has_aux=True)
        part = self.trained(params)
        if self.accumulate == 1:
            (loss, (metrics, after)), grads = grad(part, model_state, batch, key)
            return (grads, {"loss": loss, **metrics}), after
        parts, keys = self.split(batch, key)

        def add(total: Any, micro: Any) -> tuple[Any, Any]:
            (loss, (metrics, after)), grads = grad(part, model_state, *micro)
            return jax.tree.map(jnp.add, total, (grads, {"loss": loss, **metrics})), after

        first = jax.tree.map(lambda x: x[0], parts)
        (loss, (metrics, _)), grads = jax.eval_shape(lambda: grad(part, model_state, first, keys[0]))
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (grads, {"loss": loss, **metrics}))
        total, states = jax.lax.scan(add, self.empty_sum(zero), (parts, keys))
        mean: tuple[Params, Scalars] = jax.tree.map(lambda x: x / self.accumulate, total)
        return mean, merge_model_states(states)

    def step_gradients(self, state: TrainState, objective: Objective, compute: Callable[[], Results]) -> Results:
        """Return the gradients of a step: those that the last line search has stored, otherwise the result of `compute`."""
        if not self.uses_line_search:
            return compute()
        of_part = self._of_trained(objective, state.params)
        loss, grads = optax.value_and_grad_from_state(of_part)(self.trained(state.params), state=state.opt_state)
        return (grads, {"loss": loss}), None

    def update(
        self, state: TrainState, grads: Params, metrics: Scalars, objective: Objective | None, model_state: Any = None
    ) -> tuple[TrainState, StepMetrics]:
        """Apply the gradients of the global batch, and add `grad_norm` and `learning_rate` to the metrics.

        With `skip_nonfinite`, gradients that are not finite change nothing but the number of the step.

        Args:
            state: the state before the step.
            grads: gradients of the global batch.
            metrics: means over the global batch, with `loss`.
            objective: the loss, for a line search; None if `updates_outside`.
            model_state: the model's new state, the same on all devices.
        """
        before = self.trained(state.params)
        of_part = None if objective is None else self._of_trained(objective, state.params)
        updates, opt_state = self.optimizer.update(
            grads, state.opt_state, before, value=metrics["loss"], grad=grads, value_fn=of_part
        )
        after = optax.apply_updates(before, updates)
        params = merge(after, state.params)
        ema = state.ema
        if ema is not None and self.ema is not None:
            ema = optax.incremental_update(after, ema, 1 - self.ema)
        norm = optax.tree.norm(grads)
        metrics = {**metrics, "grad_norm": norm, "learning_rate": self._step_size(state, opt_state)}
        updated = TrainState(state.step + 1, params, opt_state, ema, model_state)
        if self.config.skip_nonfinite:
            # By the gradient only: it is the same on all devices, while the loss may be that of a device's share.
            choose = partial(jnp.where, jnp.isfinite(norm))
            chosen: TrainState = jax.tree.map(choose, updated, state)
            updated = replace(chosen, step=state.step + 1)
        return strip_weak_types(updated), StepMetrics.of(metrics)

    def _step_size(self, state: TrainState, opt_state: Any) -> jax.Array:
        """Return the learning rate of a step, float32[], from the states before it and the optimizer's after it."""
        if self.uses_line_search:
            return jnp.asarray(optax.tree.get(opt_state, "learning_rate"), jnp.float32)
        taken = state.step
        if self.config.skip_nonfinite and not isinstance(self.config.optimizer, Plugin):
            # The optimizer's own count, which leaves out skipped steps. All counts in its state are equal.
            taken = optax.tree.get_all_with_path(state.opt_state, "count")[0][1]
        return jnp.asarray(self.schedule(taken), jnp.float32)

    def _of_trained(self, objective: Objective, params: Params) -> Objective:
        """Return the objective as a function of the parameters that are trained."""
        return lambda part: objective(merge(part, params))

    def update_outside(
        self, compute: Callable[[TrainState, Batch], Results], state: TrainState, batch: Batch
    ) -> tuple[TrainState, StepMetrics]:
        """Compute the gradients of the global batch by `compute`, and apply them outside of it. Only if `updates_outside`.

        The compile time of `compute`, the program of one device, grows with the square of the number of its inputs and
        outputs, so it gets no optimizer state.
        """
        (grads, metrics), after = compute(replace(state, opt_state=None, ema=None), batch)
        return self.update(state, grads, metrics, None, after)

    def restored(self, named: StateDict) -> TrainState:
        """Return the arrays of a checkpoint as a state."""
        return from_dict(self.abstract_state(), named)
