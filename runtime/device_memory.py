"""The memory of a device that programs can use, by the name that JAX gives its kind.

For a TPU, it is the limit in the compiler's own error, `exceeds available HBM (15.75G)`, of libtpu 0.0.42. For a GPU, it is a
part of the memory in `gpus/*.txtpb`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from .devices import Devices

GPUS = Path(__file__).parent / "gpus"
GPU_FRACTION = 0.75
"""Part of a GPU's memory that JAX allocates at its start (XLA_PYTHON_CLIENT_MEM_FRACTION changes it)."""
_GIB = 2**30
_TPUS = {
    "TPU v2": 7.48,
    "TPU v3": 15.48,
    "TPU v5 lite": 15.75,
    "TPU v5": 95.74,
    "TPU v6 lite": 31.25,
    "TPU7x": 94.75,
}
"""GiB that programs can use of a device, by its kind."""


_UNKNOWN_GPU = int(16 * _GIB * GPU_FRACTION)
"""Bytes that programs can use of a GPU that is not described: a workstation has at least such a one."""


def usable_memory(kind: str) -> int | None:
    """Return the bytes that programs can use of a device of this kind (`Devices.kind`); None if it is unknown."""
    if kind in _TPUS:
        return round(_TPUS[kind] * _GIB)
    size = _gpu_memory().get(kind)
    return int(size * GPU_FRACTION) if size else None


def gpu_memory(pod: Devices) -> int | None:
    """Return the bytes of a GPU's memory that programs can use; None if the devices are no GPUs."""
    if pod.platform != "gpu":
        return None
    return usable_memory(pod.kind) or _UNKNOWN_GPU


@cache
def _gpu_memory() -> dict[str, int]:
    """Return the memory in bytes of each kind of GPU that podrun has a description of."""
    sizes = {}
    for path in GPUS.glob("*.txtpb"):
        text = path.read_text()
        kind = re.search(r'^device_description_str: "(.*)"$', text, re.MULTILINE)
        size = re.search(r"^  device_memory_size: (\d+)$", text, re.MULTILINE)
        assert kind and size, path
        sizes[kind[1]] = int(size[1])
    return sizes
