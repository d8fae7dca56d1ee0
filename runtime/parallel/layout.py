"""The mesh of a pod's devices, and the shardings of batch and state on it.

The mesh has two axes, data and `fsdp`. A batch is divided over both. If `fsdp` is 1, every device holds the whole state.
Otherwise each large array of the state is divided over `fsdp`, along its longest dimension that `fsdp` divides (ZeRO-3,
Rajbhandari et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ..devices import Devices
from ..models.adapter import name_of
from ..models.shares import SHARES
from ..worker.quiet import without_gloo_lines

DATA, FSDP = SHARES, "fsdp"
AXES = (DATA, FSDP)
SMALL = 1 << 14  # elements: arrays up to this size are replicated, since gathering them costs more than their memory


@dataclass(frozen=True)
class Layout:
    """A mesh of all devices, and the shardings of arrays on it."""

    mesh: Mesh

    @classmethod
    def of_pod(cls, pod: Devices, fsdp: int = 1, axis_type: AxisType = AxisType.Auto) -> Layout:
        """Return a layout over all devices of the pod.

        Args:
            pod: the devices.
            fsdp: number of devices that the state is divided over.
            axis_type: Auto if the compiler chooses shardings; Explicit if they are part of array types.
        """
        return cls(pod.mesh({DATA: pod.count // fsdp, FSDP: fsdp}, (axis_type, axis_type)))

    @property
    def fsdp(self) -> int:
        """Return the number of devices that the state is divided over."""
        return self.mesh.shape[FSDP]

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the axes that a batch is divided over, without axes of size 1.

        JAX cannot reshape arrays with explicit shardings over an axis of size 1.
        """
        return tuple(name for name in AXES if self.mesh.shape[name] > 1) or (DATA,)

    @property
    def replicated(self) -> NamedSharding:
        """Return the sharding of arrays that every device holds in full."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch_sharding(self) -> NamedSharding:
        """Return the sharding of a batch, [B, ...], over all devices."""
        return NamedSharding(self.mesh, PartitionSpec(self.axes))

    def state_shardings(self, state: Any, stacked: Sequence[str] = ()) -> Any:
        """Return the shardings of a state, or of a part of it, between steps.

        Args:
            state: arrays or ShapeDtypeStructs.
            stacked: names of the parameters that are stacked over layers (see `Task.stacked`).
        """

        def sharding(path: Any, leaf: Any) -> NamedSharding:
            return NamedSharding(self.mesh, partition(leaf.shape, self.fsdp, is_stacked(path, stacked)))

        return jax.tree.map_with_path(sharding, state)

    def connect(self) -> None:
        """Communicate over each axis once, so that gloo connects now.

        Gloo connects in the first collective of an axis and waits 30 s for the other processes, which may compile longer.
        """
        parts = jax.make_array_from_process_local_data(
            self.batch_sharding, np.zeros(jax.local_device_count(), np.float32)
        )
        with without_gloo_lines():
            for axis in self.axes:
                whole = NamedSharding(self.mesh, PartitionSpec(*[other for other in self.axes if other != axis]))
                jax.block_until_ready(jax.jit(lambda x: x, out_shardings=whole)(parts))


def is_stacked(path: Any, stacked: Sequence[str]) -> bool:
    """Return whether an array has a leading axis of layers, by its path in the parameters or in a moment of the optimizer."""
    return any(name_of((key,)) in stacked for key in path)


def partition(shape: tuple[int, ...], parts: int, stacked: bool = False) -> PartitionSpec:
    """Return how to divide an array of the state over `fsdp`: along its longest dimension that `parts` divides, if any.

    Of an array that is `stacked` over layers, each layer is divided so.
    """
    fits = [i for i, n in enumerate(shape) if n % parts == 0 and i >= stacked]
    if parts == 1 or not fits or np.prod(shape[stacked:]) <= SMALL:
        return PartitionSpec()
    longest = max(fits, key=lambda i: shape[i])
    return PartitionSpec(*[None] * longest, FSDP)
