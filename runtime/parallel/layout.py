"""The mesh of a pod's devices, and the shardings of batch and state on it.

The mesh has three axes. A batch is divided over the data axis and over `fsdp`. If `fsdp` is above 1, each large array of the
state is divided over it, along its longest dimension that `fsdp` divides (ZeRO-3, Rajbhandari et al. 2020). Devices along
`model` have the same examples; matrices are divided over it along the dimensions that rules say, and stay so while they are
computed with (tensor parallelism, Shoeybi et al. 2019).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ..config.parallel import Mesh as Grid
from ..config.parallel import rule_pattern
from ..devices import Devices
from ..models.adapter import name_of
from ..models.shares import SHARES
from ..worker.quiet import without_gloo_lines

DATA, FSDP, MODEL = SHARES, "fsdp", "model"
BATCH_AXES = (DATA, FSDP)
SMALL = 1 << 14
"""Elements: fsdp divides no arrays up to this size, since gathering them costs more than their memory."""


@dataclass(frozen=True)
class Partition:
    """Division of the state's arrays, by their names: the keys along the path in the parameters or in a moment, with dots.

    Args:
        fsdp: number of devices that the state is divided over.
        model: number of devices that compute parts of the same matrices.
        rules: the dimension of a parameter that `model` divides, by a regular expression that the end of its name matches.
            The first match counts. Dimensions count from 0 within one layer; -1 is the last.
        stacked: names of the parameters that are stacked over layers (see `Task.stacked`).
    """

    fsdp: int = 1
    model: int = 1
    rules: Mapping[str, int] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()

    def of(self, name: str, shape: tuple[int, ...]) -> PartitionSpec:
        """Return the spec that divides an array between steps."""
        spec = self.of_layer(name, shape[self.is_stacked(name) :])
        return PartitionSpec(None, *spec) if self.is_stacked(name) and any(spec) else spec

    def of_layer(self, name: str, shape: tuple[int, ...]) -> PartitionSpec:
        """Return the spec that divides an array of one layer between steps. Its name may begin within the layer."""
        axes: list[str | None] = [None] * len(shape)
        model = self._along_model(name, shape)
        if model is not None:
            axes[model] = MODEL
        fits = [i for i, n in enumerate(shape) if n % self.fsdp == 0 and i != model]
        if self.fsdp > 1 and fits and np.prod(shape) > SMALL * (1 if model is None else self.model):
            axes[max(fits, key=lambda i: shape[i])] = FSDP
        while axes and axes[-1] is None:
            axes.pop()
        return PartitionSpec(*axes)

    def gathered(self, name: str, shape: tuple[int, ...]) -> PartitionSpec:
        """Return the spec that divides an array of one layer while it is computed with: over `model` only."""
        model = self._along_model(name, shape)
        return PartitionSpec() if model is None else PartitionSpec(*[None] * model, MODEL)

    def is_stacked(self, name: str) -> bool:
        """Return whether an array has a leading axis of layers."""
        return any(key in self.stacked for key in name.split("."))

    def _along_model(self, name: str, shape: tuple[int, ...]) -> int | None:
        """Return the dimension that `model` divides; None if it divides none."""
        if self.model == 1 or len(shape) < 2:
            return None
        along = next((n for rule, n in self.rules.items() if re.search(rule_pattern(rule), name)), None)
        if along is None or not -len(shape) <= along < len(shape) or shape[along] % self.model:
            return None
        return along % len(shape)


@dataclass(frozen=True)
class Layout:
    """A mesh of all devices, and the shardings of arrays on it."""

    mesh: Mesh

    @classmethod
    def of_pod(cls, pod: Devices, grid: Grid | None = None, axis_type: AxisType = AxisType.Auto) -> Layout:
        """Return a layout over all devices of the pod.

        Args:
            pod: the devices.
            grid: the job's mesh; None: the state is not divided.
            axis_type: Auto if the compiler chooses shardings; Explicit if they are part of array types.
        """
        fsdp, model = (1, 1) if grid is None else (grid.fsdp, grid.model)
        shape = {DATA: pod.count // (fsdp * model), FSDP: fsdp, **({MODEL: model} if model > 1 else {})}
        return cls(pod.mesh(shape, (axis_type,) * len(shape)))

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the axes that a batch is divided over, without axes of size 1.

        JAX cannot reshape arrays with explicit shardings over an axis of size 1.
        """
        return tuple(name for name in BATCH_AXES if self.mesh.shape[name] > 1) or (DATA,)

    @property
    def replicated(self) -> NamedSharding:
        """Return the sharding of arrays that every device holds in full."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch_sharding(self) -> NamedSharding:
        """Return the sharding of a batch, [B, ...]."""
        return self._along(self.axes)

    def data_shard(self, pod: Devices) -> tuple[int, int]:
        """Return (i, n): a process provides the i-th of n equal parts of each batch. Others may provide the same part.

        `make_array_from_process_local_data` takes the parts in the order in which a process has them.
        """
        rows: dict[int, set[int]] = {}
        shares = self.mesh.size // self.mesh.shape.get(MODEL, 1)
        places: dict[Any, Any] = dict(self.batch_sharding.devices_indices_map((shares,)))
        for device, (row,) in places.items():
            rows.setdefault(device.process_index, set()).add(row.indices(shares)[0])
        parts = sorted({tuple(sorted(starts)) for starts in rows.values()})
        if sum(map(len, parts)) != shares or len({len(part) for part in parts}) > 1:
            return 0, 1  # processes share some of their rows: each reads all of them
        return parts.index(tuple(sorted(rows[pod.process]))), len(parts)

    def state_shardings(self, state: Any, partition: Partition) -> Any:
        """Return the shardings of a state, or of a part of it, between steps.

        Args:
            state: arrays or ShapeDtypeStructs.
            partition: how arrays are divided.
        """
        return jax.tree.map_with_path(
            lambda path, leaf: NamedSharding(self.mesh, partition.of(name_of(path), leaf.shape)), state
        )

    def connect(self) -> None:
        """Communicate once over each axis, and over each combination of them, so that gloo connects now.

        Gloo connects in the first collective of a group of devices and waits 30 s for the other processes, which may compile
        longer.
        """
        axes = tuple(name for name, size in self.mesh.shape.items() if size > 1)
        parts = jax.make_array_from_callback(
            (self.mesh.size,), self._along(axes), lambda index: np.zeros(1, np.float32)
        )
        with without_gloo_lines():
            for number in range(1, len(axes) + 1):
                for together in itertools.combinations(axes, number):
                    others = self._along(tuple(axis for axis in axes if axis not in together))
                    jax.block_until_ready(jax.jit(lambda x: x, out_shardings=others)(parts))

    def _along(self, axes: tuple[str, ...]) -> NamedSharding:
        """Return the sharding of a vector that is divided over these axes."""
        return NamedSharding(self.mesh, PartitionSpec(axes))
