"""The devices of a pod, as a value. They are real, or a topology that programs are compiled for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

CPU = "cpu"


@dataclass(frozen=True)
class Devices:
    """The devices of a pod.

    Args:
        all: every device of the pod, sorted by process and id.
        process: number of the process that asks.
        are_here: True if the devices exist and can compute; False if they are only a topology, for which programs are
            compiled.
    """

    all: tuple[jax.Device, ...]
    process: int = 0
    are_here: bool = True

    @classmethod
    def here(cls) -> Devices:
        """Return the devices that this process can use, together with the other processes of the run."""
        return cls(_sorted(jax.devices()), jax.process_index())

    @classmethod
    def of_topology(cls, devices: Sequence[jax.Device]) -> Devices:
        """Return the devices of a `jax.experimental.topologies.TopologyDescription`, as process 0 would see them."""
        return cls(_sorted(devices), are_here=False)

    @property
    def count(self) -> int:
        return len(self.all)

    @cached_property
    def local(self) -> tuple[jax.Device, ...]:
        """Return the devices of this process."""
        return tuple(device for device in self.all if device.process_index == self.process)

    @cached_property
    def processes(self) -> int:
        return len({device.process_index for device in self.all})

    @property
    def platform(self) -> str:
        """Return `cpu`, `gpu` or `tpu`."""
        name: str = self.all[0].platform
        return "gpu" if name in ("cuda", "rocm") else name

    @property
    def is_cpu(self) -> bool:
        return self.platform == CPU

    @property
    def kind(self) -> str:
        """Return the kind of the devices as JAX names it, such as `TPU v5 lite`."""
        kind: str = self.all[0].device_kind
        return kind

    @cached_property
    def slices(self) -> int:
        """Return the number of slices. The network between slices is slower than the one within a slice."""
        return len({getattr(device, "slice_index", 0) for device in self.all}) if self.platform == "tpu" else 1

    def pmap(self, function: Callable[..., Any], axis: str, **options: Any) -> Any:
        """Return `jax.pmap` of the function over all devices. If they are a topology, it can be lowered but not called."""
        return jax.pmap(function, axis, devices=None if self.are_here else list(self.all), **options)

    def mesh(self, shape: dict[str, int], axis_types: Any = None) -> Mesh:
        """Return a mesh of all devices, with axes by name.

        The axes after the first communicate most, so on TPUs they follow the interconnect and stay within a slice.
        """
        sizes = tuple(shape.values())
        return Mesh(self._grid(sizes), tuple(shape), axis_types=axis_types)

    def _grid(self, sizes: tuple[int, ...]) -> np.ndarray[Any, Any]:
        # Sorted by process: each process holds a contiguous part of a batch, and each slice of its own.
        in_order = np.array(self.all).reshape(sizes)
        if self.platform != "tpu" or sum(size > 1 for size in sizes) < 2 or sizes[0] % self.slices:
            return in_order
        try:
            if self.slices == 1:
                return mesh_utils.create_device_mesh(sizes, devices=self.all, allow_split_physical_axes=True)
            return mesh_utils.create_hybrid_device_mesh(
                (sizes[0] // self.slices, *sizes[1:]),
                (self.slices, *[1] * (len(sizes) - 1)),
                devices=self.all,
                allow_split_physical_axes=True,
            )
        except (TypeError, ValueError, NotImplementedError, AssertionError):
            # JAX 0.10 to 0.12 cannot split some topologies, such as a v5p's 4x12x20 over 15 and 64.
            return in_order


def _sorted(devices: Sequence[jax.Device]) -> tuple[jax.Device, ...]:
    return tuple(sorted(devices, key=lambda device: (device.process_index, device.id)))
