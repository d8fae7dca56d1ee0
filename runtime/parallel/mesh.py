"""Place state and batches as global arrays on a mesh of all devices: the base of `jit`, `explicit` and `shard_map`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding

from ..state import Batch, Params, StateDict, TrainState
from .arrays import with_sharding
from .base import Strategy
from .layout import Layout


class MeshStrategy(Strategy):
    """Base of the strategies that place state and batches as global arrays.

    Args:
        *args: as of `Strategy`.
        fsdp: number of devices that the state is divided over; 1: every device holds all of it.
        axis_type: Auto if the compiler chooses shardings; Explicit if they are part of array types.
        **kwargs: as of `Strategy`.
    """

    is_one_program = True

    def __init__(self, *args: Any, fsdp: int = 1, axis_type: AxisType = AxisType.Auto, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        layout = Layout.of_pod(self.pod, fsdp, axis_type)
        self.mesh, self.axes, self.replicated, self.batch_sharding = (
            layout.mesh,
            layout.axes,
            layout.replicated,
            layout.batch_sharding,
        )
        self.layout: TrainState = layout.state_shardings(self.initial.shapes, self.task.stacked)
        self.fsdp = fsdp
        self.saves_in_parts = fsdp > 1
        if fsdp > 1 and self.pod.processes > 1 and self.pod.is_cpu:
            layout.connect()

    def init(self) -> TrainState:
        return self.initialized(self.layout)

    def abstract_state(self) -> TrainState:
        return with_sharding(self.initial.shapes, self.layout)

    def place(self, named: StateDict) -> TrainState:
        state = self.restored(named)
        if self.saves_in_parts:
            return state
        return jax.tree.map(self._replicate, state)

    def _replicate(self, x: Any) -> jax.Array:
        if isinstance(x, jax.Array) and x.sharding == self.replicated:
            return x
        return self._global(np.asarray(x), self.replicated, np.shape(x))

    def one_copy(self, params: Params) -> Params:
        whole: Params = jax.jit(lambda x: x, out_shardings=self.replicated)(params)
        return whole

    def shard(self, batch: Batch) -> Batch:
        return {
            k: self._global(v, self.batch_sharding, (len(v) * self.data_shard[1], *v.shape[1:]))
            for k, v in batch.items()
        }

    def abstract_batch(self, batch: Batch) -> Batch:
        return with_sharding(batch, self.batch_sharding)

    def _global(self, local: Any, sharding: NamedSharding, shape: tuple[int, ...]) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding, local, shape)
