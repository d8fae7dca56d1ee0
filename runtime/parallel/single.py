"""Training on one device: the baseline for the other strategies.

On a pod every process trains on its first device, with the same data and the same result, and without communication.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from ..models.shares import of_one_share
from ..state import Batch, Params, StateDict, TrainState
from .arrays import with_sharding
from .base import Loss, Strategy
from .metrics import StepMetrics


class Single(Strategy):
    divides_batch = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._here = SingleDeviceSharding(self.pod.local[0])
        self._step = jax.jit(self._whole_step, donate_argnums=0)
        self._evaluate = jax.jit(of_one_share(self.evaluated))

    def init(self) -> TrainState:
        return self.initialized(self._here)

    def abstract_state(self) -> TrainState:
        return with_sharding(self.initial.shapes, self._here)

    def place(self, named: StateDict) -> TrainState:
        return jax.device_put(self.restored(named), self._here)

    def shard(self, batch: Batch) -> Batch:
        return jax.device_put(batch, self._here)

    def abstract_batch(self, batch: Batch) -> Batch:
        return with_sharding(batch, self._here)

    def loss(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Loss:
        loss: Loss = of_one_share(self.share_loss)(params, model_state, batch, key)
        return loss

    def _whole_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = self.step_key(state.step, 0)

        def objective(params: Any) -> jax.Array:
            return self.loss(params, self.inputs(state), batch, key)[0]

        (grads, metrics), after = self.step_gradients(
            state, objective, lambda: self.gradients(state.params, self.inputs(state), batch, key)
        )
        return self.update(state, grads, metrics, objective, after)
