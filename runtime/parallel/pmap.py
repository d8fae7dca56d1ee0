"""Data parallelism by `jax.pmap` over the local devices of each process: the default.

Every device holds the whole state and a share of the batch. The state has no device axis (in_axes and out_axes are None), so
arrays have the model's shapes and their buffers are donated. All arrays are global, over all processes. Gradients are
averaged over the pod by `pmean`, not the loss: under pmap, JAX differentiates a `pmean` to the local gradient.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..models.shares import SHARES
from ..state import Batch, Params, StateDict, TrainState
from ..tasks.base import Scalars
from .arrays import with_sharding
from .base import Strategy
from .collectives import DeviceStep, all_gather, average, total

AXIS = SHARES


class Pmap(Strategy):
    is_one_program = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mesh = self.pod.mesh({AXIS: self.pod.count})
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._split = NamedSharding(mesh, PartitionSpec(AXIS))
        device = DeviceStep(self, AXIS)
        # Inside jit, JAX supports a pmap of one process only.
        if self.updates_outside and self.pod.processes == 1:
            of_pod = self.pod.pmap(device.results, AXIS, in_axes=(None, 0), out_axes=None)
            step = partial(self.update_outside, of_pod)
            self._step = jax.jit(step, donate_argnums=0, out_shardings=self._replicated)
        else:
            self._step = self.pod.pmap(device.step, AXIS, in_axes=(None, 0), out_axes=None, donate_argnums=0)
        self._evaluate = self.pod.pmap(self._device_evaluate, AXIS, in_axes=(None, 0), out_axes=None)

    def init(self) -> TrainState:
        return self.initialized(self._replicated)

    def abstract_state(self) -> TrainState:
        return with_sharding(self.initial.shapes, self._replicated)

    def place(self, named: StateDict) -> TrainState:
        return jax.tree.map(self._replicate, self.restored(named))

    def _replicate(self, x: Any) -> jax.Array:
        if isinstance(x, jax.Array) and x.sharding == self._replicated:
            return x
        return jax.make_array_from_process_local_data(self._replicated, np.asarray(x), np.shape(x))

    def shard(self, batch: Batch) -> Batch:
        """Return the batch with a leading axis of devices, [shares, B / shares, ...]."""
        local = len(self.pod.local)
        parts = {k: np.reshape(v, (local, -1, *v.shape[1:])) for k, v in batch.items()}
        return {
            k: jax.make_array_from_process_local_data(self._split, v, (self.shares, *v.shape[1:]))
            for k, v in parts.items()
        }

    def examples(self, batch: Batch) -> Batch:
        return {name: x[0] for name, x in batch.items()}

    def abstract_batch(self, batch: Batch) -> Batch:
        shares = self.shares
        shapes = {
            k: jax.ShapeDtypeStruct((shares, v.shape[0] // shares, *v.shape[1:]), v.dtype) for k, v in batch.items()
        }
        return with_sharding(shapes, self._split)

    def _device_evaluate(self, params: Params, batch: Batch) -> Scalars:
        if self.task.whole_batch:
            whole = self.evaluated(params, all_gather(batch, AXIS))
            same: Scalars = whole if self.task.collects else average(whole, AXIS, self.pod)
            return same
        part = self.evaluated(params, batch)
        sums: Scalars = all_gather(part, AXIS) if self.task.collects else total(part, AXIS, self.pod)
        return sums
