"""Layouts over the devices of a pod, as values: a mesh, and the rules by which arrays are divided over its axes.

The mesh has two axes. A batch is divided over both. The state is whole on every device if `fsdp` is 1; else each of its
large arrays is divided over `fsdp` along its longest dimension that this divides (ZeRO-3, Rajbhandari et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ..models.shares import SHARES
from ..worker.quiet import without_gloo_lines

DATA, FSDP = SHARES, "fsdp"
AXES = (DATA, FSDP)
SMALL = 1 << 14  # elements: smaller arrays stay whole, since gathering costs more than the memory that they take


@dataclass(frozen=True)
class Layout:
    """A mesh of all devices, which gives arrays their shardings."""

    mesh: Mesh

    @classmethod
    def of_pod(cls, fsdp: int = 1, axis_type: AxisType = AxisType.Auto) -> Layout:
        """Return a layout over all devices of the pod.

        Args:
            fsdp: number of parts that the state is divided in.
            axis_type: whether the compiler chooses layouts, or they are in the types of arrays.
        """
        # A process's devices are neighbours, so that its part of a batch is in one piece.
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
        return cls(Mesh(np.array(devices).reshape(-1, fsdp), AXES, axis_types=(axis_type, axis_type)))

    @property
    def fsdp(self) -> int:
        """Return the number of parts that the state is divided in."""
        return self.mesh.shape[FSDP]

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the axes that a batch is divided over.

        An axis of size 1 divides nothing, and confuses JAX's rules for reshapes of explicit layouts.
        """
        return tuple(name for name in AXES if self.mesh.shape[name] > 1) or (DATA,)

    @property
    def replicated(self) -> NamedSharding:
        """Return the sharding of arrays that are whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def divided(self) -> NamedSharding:
        """Return the sharding of a batch: a part on each device."""
        return NamedSharding(self.mesh, PartitionSpec(self.axes))

    def stored(self, state: Any) -> Any:
        """Return the shardings of a state, or of a part of it, between steps; `state` has arrays or their shapes."""
        return jax.tree.map(lambda leaf: NamedSharding(self.mesh, partition(leaf.shape, self.fsdp)), state)

    def connect(self) -> None:
        """Communicate over each axis once: gloo connects at the first call, and processes have 30 s to arrive at it."""
        parts = jax.make_array_from_process_local_data(self.divided, np.zeros(jax.local_device_count(), np.float32))
        with without_gloo_lines():
            for axis in self.axes:
                whole = NamedSharding(self.mesh, PartitionSpec(*[other for other in self.axes if other != axis]))
                jax.block_until_ready(jax.jit(lambda x: x, out_shardings=whole)(parts))


def partition(shape: tuple[int, ...], parts: int) -> PartitionSpec:
    """Return how to divide an array of the state: along its longest dimension that `parts` divides, or not at all."""
    fits = [i for i, n in enumerate(shape) if n % parts == 0]
    if parts == 1 or not fits or np.prod(shape) <= SMALL:
        return PartitionSpec()
    longest = max(fits, key=lambda i: shape[i])
    return PartitionSpec(*[None] * longest, FSDP)
