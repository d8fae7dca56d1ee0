"""An ensemble by `jax.pmap`: one model per device of the pod, all trained on the same data.

Members differ in their seed, which is derived from the global index of their device, so that it does not depend on how
devices are divided over hosts. They share no gradients. The reported loss is the mean of the members' losses. An evaluation
scores the mean of the members' predictions (Hansen & Salamon 1990; Lakshminarayanan et al. 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..contract import UserError
from ..events import Metrics
from ..models.shares import of_one_share
from ..state import Batch, Params, StateDict, TrainState, variables
from ..tasks.base import Scalars, Sums, Task
from ..tasks.collecting import collect
from .arrays import put_global, with_sharding
from .base import Loss, Results, Strategy
from .collectives import average
from .metrics import StepMetrics

AXIS = "ensemble"
_STATE: Any = TrainState(step=None, params=0, opt_state=0, ema=0, model_state=0)  # type: ignore[arg-type]
"""The axis of the members in each part of the state. `step` has none: all members share it."""


class _MemberProgram:
    """The step of this process's members, with the indices of the members filled in."""

    def __init__(self, program: Any, state: TrainState, members: jax.Array) -> None:
        self._program = program
        self._state = state
        self._members = members

    def __call__(self, state: TrainState, batch: Batch) -> Any:
        return self._program(state, self._members, batch)

    def lower(self, _: TrainState, batch: Batch) -> jax.stages.Lowered:
        """Return the lowered program for this process's members. The given state, of all members, is ignored."""
        lowered: jax.stages.Lowered = self._program.lower(self._state, self._members, batch)
        return lowered


class Ensemble(Strategy):
    divides_batch = False
    model_per_device = True
    saves_in_parts = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._predict, self._score = _prediction_functions(self.task, self.config.task)
        local = self.pod.local
        pod, here = self.pod.mesh({AXIS: self.pod.count}), Mesh(np.array(local), (AXIS,))
        self._global_members = NamedSharding(pod, PartitionSpec(AXIS))
        self._local_members = NamedSharding(here, PartitionSpec(AXIS))
        self._global_replicated, self._local_replicated = (NamedSharding(m, PartitionSpec()) for m in (pod, here))
        self._numbers = self.pod.all.index(local[0]) + np.arange(len(local), dtype=np.int32)
        # Global indices of this process's members.
        self._members: Any = with_sharding(self._numbers, self._local_members)
        if self.pod.are_here:
            self._members = jax.device_put(self._numbers, self._local_members)
        self._ones: jax.Array | None = None
        state = self._abstract(self._local_members, self._local_replicated)
        # JAX traces no pmap over several processes within another program.
        if self.updates_outside and self.pod.processes == 1:
            self._results = self.pod.pmap(self._member_results, AXIS, in_axes=(_STATE, 0, None))
            layout = self._layout(state, self._local_members, self._local_replicated)
            step = jax.jit(self._all_members_step, donate_argnums=0, out_shardings=(layout, self._local_members))
        else:
            step = self.pod.pmap(
                self._member_step, AXIS, in_axes=(_STATE, 0, None), out_axes=(_STATE, 0), donate_argnums=0
            )
        self._step = _MemberProgram(step, state, self._members)
        self._mean = self.pod.pmap(lambda metrics: average(metrics, AXIS, self.pod), AXIS, out_axes=None)
        self._evaluate = self.pod.pmap(self._member_evaluate, AXIS, in_axes=(0, None), out_axes=None)

    # --- placement ---

    def init(self) -> TrainState:
        if not self.pod.is_cpu:
            init = self.pod.pmap(lambda member: self.initial(self._member_seed(member)), AXIS, out_axes=_STATE)
            state: TrainState = init(self._members)
            return state
        members = [self.initial.compute(self._member_seed(number)) for number in self._numbers.tolist()]
        together: TrainState = jax.tree.map(lambda *each: np.stack(each), *members)
        layout = self._layout(together, self._local_members, self._local_replicated)
        placed: TrainState = put_global(replace(together, step=members[0].step), layout)
        return placed

    def abstract_state(self) -> TrainState:
        """Return the abstract state of the whole ensemble: the leading axis is the member."""
        return self._abstract(self._global_members, self._global_replicated)

    def _abstract(self, members: NamedSharding, whole: NamedSharding) -> TrainState:
        one, count = self.initial.shapes, members.num_devices
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), one)
        return with_sharding(replace(shapes, step=one.step), self._layout(shapes, members, whole))

    def _layout(self, state: TrainState, members: NamedSharding, whole: NamedSharding) -> TrainState:
        layout: TrainState = jax.tree.map(lambda _: members, state)
        step: Any = whole
        return replace(layout, step=step)

    def global_state(self, state: TrainState) -> TrainState:
        """Return global arrays over all processes, made of each device's arrays without a copy."""
        whole: TrainState = jax.tree.map(_as_global, state, self.abstract_state())
        return whole

    def place(self, named: StateDict) -> TrainState:
        state = self.restored(named)
        return jax.tree.map(_as_local, state, self._layout(state, self._local_members, self._local_replicated))

    def one_copy(self, params: Params) -> Params:
        """Return the parameters of this process's first member, without the axis of members."""
        return jax.tree.map(lambda x: x[0], params)

    def shard(self, batch: Batch) -> Batch:
        return jax.device_put(batch, self._local_replicated)

    def abstract_batch(self, batch: Batch) -> Batch:
        return with_sharding(batch, self._local_replicated)

    # --- execution ---

    def average(self, metrics: StepMetrics) -> StepMetrics:
        """Return the mean over all members. The step does not compute it, so that members do not wait for each other."""
        mean: StepMetrics = self._mean(metrics)
        return mean

    def scores(self, state: TrainState, batch: Batch) -> dict[str, float]:
        """Return the metrics of the averaged prediction before the step: `ensemble_loss` and so on."""
        sums = jax.device_get(self._evaluate(variables(state.params, state.model_state), self._with_weights(batch)))
        ensemble = {name: value for name, value in sums.items() if name != "members"}
        if self.task.collects:
            ensemble = super().joined([ensemble])
        else:
            ensemble = {name: float(value) for name, value in ensemble.items()}
        return {f"ensemble_{name}": value for name, value in self.summary(ensemble).items()}

    def joined(self, parts: Iterable[Sums]) -> Sums:
        parts = [*parts]
        whole = super().joined([{k: v for k, v in part.items() if k != "members"} for part in parts])
        members = [
            super(Ensemble, self).joined([{k: v[i] for k, v in part["members"].items()} for part in parts])
            for i in range(self.pod.count)
        ]
        return {**whole, "members": {name: np.stack([one[name] for one in members]) for name in members[0]}}

    def together(self, sets: Sequence[Sums]) -> Sums:
        if not self.task.collects:
            return super().together(sets)
        whole = super().together([{k: v for k, v in part.items() if k != "members"} for part in sets])
        members = [part["members"] for part in sets]
        return {**whole, "members": {k: np.concatenate([one[k] for one in members], 1) for k in members[0]}}

    def _with_weights(self, batch: Batch) -> Batch:
        """Add an evaluation's weights to a training batch, so that one compiled program serves both."""
        if "weights" in batch:
            return batch
        size = len(next(iter(batch.values())))
        if self._ones is None or len(self._ones) != size:
            zero = np.zeros(1, np.int64)
            one = self.task.data.validation.gather(zero, zero)["weights"]
            self._ones = jax.device_put(np.ones((size, *one.shape[1:]), np.float32), self._local_replicated)
        return {**batch, "weights": self._ones}

    def summarize(self, sums: Sums) -> Metrics:
        """Return the ensemble's metrics, the members' means, the metrics of the member with the lowest loss, and of each.

        Returns:
            The task's metrics by name; the same with the prefixes `mean_member_` and `best_member_`; `best_member`, its
            index; and `members`, a list with the metrics of each member.
        """
        members = [
            self.summary({name: value[i] for name, value in sums["members"].items()}) for i in range(self.pod.count)
        ]
        ensemble = self.summary({k: v for k, v in sums.items() if k != "members"})
        mean = {f"mean_member_{name}": float(np.mean([m[name] for m in members])) for name in ensemble}
        number = min(range(len(members)), key=lambda i: float(members[i]["loss"]))
        best = {f"best_member_{name}": members[number][name] for name in ensemble}
        return {**ensemble, **mean, "best_member": number, **best, "members": members}

    def _member_seed(self, member: jax.Array | int) -> jax.Array:
        return jax.random.bits(jax.random.fold_in(jax.random.key(self.seed), member))

    def _member_step(self, state: TrainState, member: jax.Array, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = self.step_key(state.step, member)

        def objective(params: Params) -> jax.Array:
            return self.loss(params, self.inputs(state), batch, key)[0]

        (grads, metrics), after = self.step_gradients(
            state, objective, lambda: self._member_results(state, member, batch)
        )
        return self.update(state, grads, metrics, objective, after)

    def _member_results(self, state: TrainState, member: jax.Array, batch: Batch) -> Results:
        return self.gradients(state.params, self.inputs(state), batch, self.step_key(state.step, member))

    def _all_members_step(self, state: TrainState, members: jax.Array, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """Compute the gradients by pmap, and update all members outside of it by `vmap` (see `update_outside`)."""
        (grads, metrics), after = self._results(replace(state, opt_state=None, ema=None), members, batch)

        def update(state: TrainState, grads: Params, metrics: Scalars, after: Any) -> tuple[TrainState, StepMetrics]:
            return self.update(state, grads, metrics, None, after)

        updated: tuple[TrainState, StepMetrics] = jax.vmap(update, in_axes=(_STATE, 0, 0, 0), out_axes=(_STATE, 0))(
            state, grads, metrics, after
        )
        return updated

    def loss(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Loss:
        loss: Loss = of_one_share(self.share_loss)(params, model_state, batch, key)
        return loss

    def _member_evaluate(self, params: Params, batch: Batch) -> Scalars:
        members = of_one_share(self.evaluated)(params, batch)
        predictions = of_one_share(self._predict)(params, batch)
        averaged = average(predictions, AXIS, self.pod)
        ensemble = (
            collect(self.config.task, self._score, averaged, batch)
            if self.task.collects
            else self._score(averaged, batch)
        )
        return {**ensemble, "members": jax.lax.all_gather(members, AXIS)}


def _prediction_functions(task: Task, name: str) -> tuple[Callable[..., jax.Array], Callable[..., Scalars]]:
    """Return the task's `predict` and `score`. Raises UserError if it lacks one."""
    if task.predict is not None and task.score is not None:
        return task.predict, task.score
    missing = [part for part, method in (("predict", task.predict), ("score", task.score)) if method is None]
    raise UserError(
        f"parallel: ensemble averages predictions, but task {name} has no {' and no '.join(missing)}; "
        "write them (see podrun.runtime.tasks.base.Task), or choose another strategy"
    )


def _as_global(x: jax.Array, shape: Any) -> jax.Array:
    parts = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(shape.shape, shape.sharding, parts)


def _as_local(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    parts = [shard.data for shard in x.addressable_shards]
    # `is_fully_replicated` would also be True for a single member.
    shape = (len(parts), *x.shape[1:]) if AXIS in sharding.spec else x.shape
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)
