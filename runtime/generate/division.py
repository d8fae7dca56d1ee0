"""Divide a model over the devices of this machine, to write text with one that is too large for a device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from ..config import Config
from ..config.parallel import Jit, Mesh
from ..contract import UserError
from ..device_memory import usable_memory
from ..devices import Devices
from ..models.adapter import Model, name_of
from ..models.gathering import gathering
from ..parallel.gathering import MeshGathering
from ..parallel.layout import MODEL, Layout, Partition

_SHARE = 0.8
"""Share of a device's memory that parameters may take; the rest is for the cache of a text and for activations."""


def first_devices(count: int | None) -> Devices:
    """Return the first devices of this process, or all of them. Raises UserError if it has fewer than `count`."""
    here = Devices.here()
    if count is not None and here.count < count:
        raise UserError(
            f"--slice has {count} devices, but JAX has {here.count} of {here.kind} here; give a smaller slice, or see what "
            "hides the others (CUDA_VISIBLE_DEVICES)"
        )
    return Devices(here.all[:count])


@dataclass(frozen=True)
class Division:
    """How the arrays of a model are divided over devices.

    Attributes:
        layout: the devices.
        partition: which dimensions of its arrays are divided.
    """

    layout: Layout
    partition: Partition

    def sharding(self, name: str, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding of a parameter."""
        return NamedSharding(self.layout.mesh, self.partition.of(name, shape))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Context manager: functions traced within it compute with divided parameters.

        Parameters that are stacked over layers are gathered one layer at a time.
        """
        by = MeshGathering(self.partition, self.layout.mesh) if self.partition.fsdp > 1 else None
        with jax.set_mesh(self.layout.mesh), gathering(by):
            yield


def division_of(config: Config, model: Model, params: Any, pod: Devices) -> Division | None:
    """Return how a model is divided over devices of this process; None if a single one has memory for all of it.

    As many devices as the model's heads allow compute parts of the same matrices (an axis `model`), and over the others
    its arrays are divided (an axis `fsdp`).

    Args:
        config: the job, with a complete section `model`.
        model: the model.
        params: shapes and dtypes of its parameters.
        pod: the devices.
    """
    size = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(params))
    memory = usable_memory(pod.kind)
    if pod.count == 1 or (memory is not None and size <= _SHARE * memory):
        return None
    grids = (Mesh(fsdp=pod.count // parts, model=parts) for parts in range(pod.count, 0, -1) if pod.count % parts == 0)
    # The optimizer does not matter: the model is not trained.
    fitting = (grid for grid in grids if Jit(mesh=grid).conflict(config.model, config.optimizer) is None)
    divisions = (_division(grid, model, pod) for grid in fitting)
    return next(each for each in divisions if each.partition.model == 1 or _divides_matrices(each, params))


def _division(grid: Mesh, model: Model, pod: Devices) -> Division:
    return Division(Layout.of_pod(pod, grid), Partition(grid.fsdp, grid.model, model.partition_rules, model.stacked))


def _divides_matrices(division: Division, params: Any) -> bool:
    """Return whether the model's rules divide a parameter. A plug-in's may match none, and all would stay whole."""
    leaves = jax.tree.leaves_with_path(params)
    return any(MODEL in division.partition.of(name_of(path), leaf.shape) for path, leaf in leaves)


def shardings_of(division: Division | None, params: Any, pod: Devices) -> Any:
    """Return the shardings of parameters, given by their shapes; on the first of the devices if they are not divided."""
    if division is None:
        here = jax.sharding.SingleDeviceSharding(pod.all[0])
        return jax.tree.map(lambda leaf: here, params)
    return jax.tree.map_with_path(lambda path, leaf: division.sharding(name_of(path), leaf.shape), params)
