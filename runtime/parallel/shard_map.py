"""Data parallelism by `jax.shard_map`: the program of one device, with explicit collectives.

Unlike under pmap, arrays are global, over all processes, and JAX tracks which values vary over devices (`check_vma`).
Parameters are marked as varying before they are differentiated; otherwise JAX would sum gradients over devices itself, one
array at a time.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

from ..state import Batch, Params
from ..tasks.base import Scalars
from .collectives import DeviceStep, all_gather, average, total
from .layout import BATCH_AXES
from .mesh import MeshStrategy

_WHOLE, _SPLIT = PartitionSpec(), PartitionSpec(BATCH_AXES)


class ShardMap(MeshStrategy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # JAX up to 0.12 cannot track a `pmean` over an axis of `vmap`, by which Equinox computes batch statistics.
        check = self.layout.model_state is None
        specs = (_WHOLE, _SPLIT)
        device = DeviceStep(self, BATCH_AXES, self.mark_varying)
        of_device: Any = device.results if self.updates_outside else device.step
        of_pod = jax.shard_map(of_device, mesh=self.mesh, in_specs=specs, out_specs=_WHOLE, check_vma=check)
        step = partial(self.update_outside, of_pod) if self.updates_outside else of_pod
        evaluate = jax.shard_map(
            self._device_evaluate,
            mesh=self.mesh,
            in_specs=specs,
            out_specs=_SPLIT if self.task.collects else _WHOLE,
            check_vma=check,
        )
        self._step = jax.jit(step, donate_argnums=0, out_shardings=self.replicated)
        self._evaluate = jax.jit(evaluate, out_shardings=self.replicated)

    def empty_sum(self, zeros: Any) -> Any:
        return self.mark_varying(zeros)

    def mark_varying(self, tree: Any) -> Any:
        """Mark the arrays of `tree` as varying over devices."""
        return jax.tree.map(lambda x: jax.lax.pcast(x, BATCH_AXES, to="varying"), tree)

    def _device_evaluate(self, params: Params, batch: Batch) -> Scalars:
        params = self.mark_varying(params)
        if self.task.whole_batch:
            whole = self.evaluated(params, all_gather(batch, BATCH_AXES))
            same: Scalars = self._own_rows(whole) if self.task.collects else average(whole, BATCH_AXES, self.pod)
            return same
        part = self.evaluated(params, batch)
        sums: Scalars = part if self.task.collects else total(part, BATCH_AXES, self.pod)
        return sums

    def _own_rows(self, values: Scalars) -> Scalars:
        """Return the rows of this device's share, of arrays of the global batch."""
        share = jax.lax.axis_index(BATCH_AXES)
        return {name: x.reshape(self.shares, -1, *x.shape[1:])[share] for name, x in values.items()}
