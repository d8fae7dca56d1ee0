"""Data parallelism by `jax.pmap` over the local devices of each process: the default.

Every device holds the whole state and a share of the batch; gradients are averaged over the pod by `pmean`. The state goes
in and out without a device axis (in_axes and out_axes None), so it has the shapes of the model and its buffers are donated.
Gradients are averaged, not the loss: under pmap the gradient of a `pmean` is the local gradient.
"""

from __future__ import annotations

from typing import Any

import flax.serialization
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..state import Batch, Params, TrainState
from ..tasks.base import Scalars
from .base import HostState, Strategy

AXIS = "device"


class Pmap(Strategy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mesh = Mesh(np.array(jax.local_devices()), (AXIS,))
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._split = NamedSharding(mesh, PartitionSpec(AXIS))
        self._local = jax.local_device_count()
        # gloo, which connects CPU processes, pays for every buffer. Elsewhere XLA combines them itself.
        self._one_buffer = jax.default_backend() == "cpu"
        self._step = jax.pmap(self._device_step, AXIS, in_axes=(None, 0), out_axes=None, donate_argnums=0)
        self._evaluate = jax.pmap(self._device_evaluate, AXIS, in_axes=(None, 0), out_axes=None)

    def init(self) -> TrainState:
        return jax.jit(self.initial_state, out_shardings=self._replicated)()

    def place(self, state: HostState) -> TrainState:
        template = jax.eval_shape(self.initial_state)
        restored: TrainState = flax.serialization.from_state_dict(template, state)
        return jax.device_put(restored, self._replicated)

    def to_host(self, state: TrainState) -> HostState:
        host: HostState = flax.serialization.to_state_dict(jax.tree.map(np.asarray, state))
        return host

    def shard(self, batch: Batch) -> Batch:
        split = {k: np.reshape(v, (self._local, -1, *v.shape[1:])) for k, v in batch.items()}
        return jax.device_put(split, self._split)

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Scalars]:
        return self._step(state, batch)

    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        return self._evaluate(params, batch)

    def _device_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Scalars]:
        key = self.step_key(state.step, jax.lax.axis_index(AXIS))
        grads, metrics = self.gradients(state.params, batch, key)
        grads, metrics = self._reduce(jax.lax.pmean, (grads, metrics))
        return self.update(state, grads, metrics)

    def _device_evaluate(self, params: Params, batch: Batch) -> Scalars:
        sums: Scalars = self._reduce(jax.lax.psum, self.task.evaluate(params, batch))
        return sums

    def _reduce(self, collective: Any, tree: Any) -> Any:
        if not self._one_buffer:
            return collective(tree, AXIS)
        flat, unravel = ravel_pytree(tree)
        return unravel(collective(flat, AXIS))
