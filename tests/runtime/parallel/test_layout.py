"""Layouts over the devices of a pod, without a strategy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from podrun.runtime.config.parallel import Mesh
from podrun.runtime.devices import Devices
from podrun.runtime.parallel.layout import BATCH_AXES, SMALL, Layout, Partition

from ..strategies import DEVICES

LARGE = jax.ShapeDtypeStruct((8, SMALL), np.float32)


def specs(tree: Any) -> Any:
    return jax.tree.map(lambda sharding: sharding.spec, tree)


@pytest.mark.parametrize(
    ("fsdp", "axes", "large"),
    [(1, ("batch",), ()), (2, BATCH_AXES, (None, "fsdp")), (4, ("fsdp",), (None, "fsdp"))],
)
def test_shardings(fsdp: int, axes: tuple[str, ...], large: tuple[str | None, ...]) -> None:
    """A batch is divided over all devices, of the state only what is large, over `fsdp`."""
    layout = Layout.of_pod(Devices.here(), Mesh(fsdp=fsdp))
    assert dict(layout.mesh.shape) == {"batch": DEVICES // fsdp, "fsdp": fsdp}
    assert layout.axes == axes
    assert specs((layout.batch_sharding, layout.replicated)) == (PartitionSpec(axes), PartitionSpec())
    stored = layout.state_shardings({"large": LARGE, "step": jax.ShapeDtypeStruct((), np.int32)}, Partition(fsdp))
    assert specs(stored) == {"large": PartitionSpec(*large), "step": PartitionSpec()}
    assert layout.batch_sharding.shard_shape((DEVICES * 3, 2)) == (3, 2)


def test_equal_layouts() -> None:
    """They are values: two of the same devices are one."""
    assert Layout.of_pod(Devices.here(), Mesh(fsdp=2)) == Layout.of_pod(Devices.here(), Mesh(fsdp=2))
    assert Layout.of_pod(Devices.here(), Mesh(fsdp=2)) != Layout.of_pod(Devices.here(), Mesh(fsdp=4))
