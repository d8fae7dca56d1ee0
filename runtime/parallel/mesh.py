"""Place global arrays on a mesh of all devices: common to `jit`, `explicit` and `shard_map`.

The mesh has two axes. A batch is divided over both. The state is whole on every device if `fsdp` is 1; else each of its
large arrays is divided over `fsdp` along its longest dimension that this divides (ZeRO-3, Rajbhandari et al. 2020).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ..state import Batch, Params, StateDict, TrainState
from ..worker.quiet import without_gloo_lines
from .base import Strategy, with_sharding

DATA, FSDP = "data", "fsdp"
AXES = (DATA, FSDP)
SMALL = 1 << 14  # elements: smaller arrays stay whole, since gathering costs more than the memory that they take


class OnMesh(Strategy):
    """Base of the strategies that place state and batches as global arrays."""

    def __init__(self, *args: Any, fsdp: int = 1, axis_type: AxisType = AxisType.Auto, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A process's devices are neighbours, so that its part of a batch is in one piece.
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
        self.mesh = Mesh(np.array(devices).reshape(-1, fsdp), AXES, axis_types=(axis_type, axis_type))
        self.fsdp = fsdp
        self.saves_in_parts = fsdp > 1
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        # An axis of size 1 divides nothing, and confuses JAX's rules for reshapes of explicit layouts.
        self.axes = tuple(name for name in AXES if self.mesh.shape[name] > 1) or (DATA,)
        self.divided = NamedSharding(self.mesh, PartitionSpec(self.axes))
        self.layout: TrainState = jax.tree.map(self._sharding, jax.eval_shape(self.initial_state))
        if fsdp > 1 and jax.process_count() > 1 and jax.default_backend() == "cpu":
            self._connect()

    def _connect(self) -> None:
        """Communicate over each axis once: gloo connects at the first call, and processes have 30 s to arrive at it."""
        parts = jax.make_array_from_process_local_data(self.divided, np.zeros(jax.local_device_count(), np.float32))
        with without_gloo_lines():
            for axis in self.axes:
                whole = NamedSharding(self.mesh, PartitionSpec(*[other for other in self.axes if other != axis]))
                jax.block_until_ready(jax.jit(lambda x: x, out_shardings=whole)(parts))

    def _sharding(self, leaf: Any) -> NamedSharding:
        return NamedSharding(self.mesh, partition(leaf.shape, self.fsdp))

    def init(self) -> TrainState:
        return jax.jit(self.initial_state, out_shardings=self.layout)()

    def abstract_state(self) -> TrainState:
        return with_sharding(jax.eval_shape(self.initial_state), self.layout)

    def place(self, named: StateDict) -> TrainState:
        state = self.restored(named)
        if self.saves_in_parts:
            return state
        return jax.tree.map(lambda x: self._global(np.asarray(x), self.replicated, np.shape(x)), state)

    def result(self, state: TrainState) -> Params:
        whole = jax.jit(lambda x: x, out_shardings=self.replicated)(state.best_params)
        return jax.tree.map(np.asarray, whole)

    def shard(self, batch: Batch) -> Batch:
        return {k: self._global(v, self.divided, (len(v) * self.data_shard[1], *v.shape[1:])) for k, v in batch.items()}

    def abstract_batch(self, batch: Batch) -> Batch:
        return with_sharding(batch, self.divided)

    def _global(self, local: Any, sharding: NamedSharding, shape: tuple[int, ...]) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding, local, shape)


def partition(shape: tuple[int, ...], parts: int) -> PartitionSpec:
    """Return how to divide an array of the state: along its longest dimension that `parts` divides, or not at all."""
    fits = [i for i, n in enumerate(shape) if n % parts == 0]
    if parts == 1 or not fits or np.prod(shape) <= SMALL:
        return PartitionSpec()
    longest = max(fits, key=lambda i: shape[i])
    return PartitionSpec(*[None] * longest, FSDP)
