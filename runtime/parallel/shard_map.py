"""Data parallelism by `jax.shard_map`: the program of one device of the pod, with the communication written out.

It differs from pmap in that arrays are global, over all processes, and that JAX keeps account of which values may differ
between devices (`check_vma`). Parameters are marked as such before gradients are taken: JAX would otherwise add the
gradients of all devices up by itself, array by array.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

from ..state import Batch, Params, TrainState
from ..tasks.base import Scalars
from .base import Results
from .collectives import average, average_step, averaged_objective, gathered, total
from .layout import AXES
from .mesh import OnMesh
from .metrics import StepMetrics

_WHOLE, _SPLIT = PartitionSpec(), PartitionSpec(AXES)


class ShardMap(OnMesh):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # JAX up to 0.12 cannot keep account of a `pmean` over an axis of `vmap`, which is how Equinox computes statistics.
        check = self.layout.model_state is None
        specs = (_WHOLE, _SPLIT)
        of_device: Any = self._device_results if self.updates_outside else self._device_step
        of_pod = jax.shard_map(of_device, mesh=self.mesh, in_specs=specs, out_specs=_WHOLE, check_vma=check)
        step = partial(self.update_outside, of_pod) if self.updates_outside else of_pod
        evaluate = jax.shard_map(
            self._device_evaluate, mesh=self.mesh, in_specs=specs, out_specs=_WHOLE, check_vma=check
        )
        self._step = jax.jit(step, donate_argnums=0, out_shardings=self.replicated)
        self._evaluate = jax.jit(evaluate)

    def empty_sum(self, zeros: Any) -> Any:
        return self.mark_varying(zeros)

    def mark_varying(self, tree: Any) -> Any:
        """Mark `tree` as one that may differ between devices."""
        return jax.tree.map(lambda x: jax.lax.pcast(x, AXES, to="varying"), tree)

    def _device_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        batch, key = self._seen(state.step, batch)
        model_state = self.mark_varying(state.model_state)
        objective = averaged_objective(
            lambda params: self.loss(params, model_state, batch, key)[0], AXES, self.mark_varying
        )
        (grads, metrics), after = self.step_gradients(state, objective, lambda: self._averaged(state, batch, key))
        return self.update(state, grads, metrics, objective, after)

    def _device_results(self, state: TrainState, batch: Batch) -> Results:
        return self._averaged(state, *self._seen(state.step, batch))

    def _seen(self, step: jax.Array, batch: Batch) -> tuple[Batch, jax.Array]:
        """Return the examples of which this device computes the loss, and its key."""
        key = self.step_key(step, 0 if self.task.whole_batch else jax.lax.axis_index(AXES))
        return gathered(batch, AXES) if self.task.whole_batch else batch, key

    def _averaged(self, state: TrainState, batch: Batch, key: jax.Array) -> Results:
        params, model_state = self.mark_varying((state.params, state.model_state))
        return average_step(self.gradients(params, model_state, batch, key), AXES)

    def _device_evaluate(self, params: Params, batch: Batch) -> Scalars:
        params = self.mark_varying(params)
        if self.task.whole_batch:
            same: Scalars = average(self.task.evaluate(params, gathered(batch, AXES)), AXES)
            return same
        sums: Scalars = total(self.task.evaluate(params, batch), AXES)
        return sums
