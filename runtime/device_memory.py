"""The memory of a device, by the name that JAX gives its kind.

For a TPU, the total is the chip's HBM in Google's TPU documentation (system architecture), divided by the devices of a
chip.
The part that programs can use is the limit in the compiler's own error, `exceeds available HBM (15.75G)`, of libtpu 0.0.42.
For a GPU, the figure is in `gpus/*.txtpb`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .devices import Devices

GPUS = Path(__file__).parent / "gpus"
GPU_FRACTION = 0.75
"""Part of a GPU's memory that JAX allocates at its start (XLA_PYTHON_CLIENT_MEM_FRACTION changes it)."""
_GIB = 2**30
_TPUS = {
    "TPU v2": (8, 7.48),
    "TPU v3": (16, 15.48),
    "TPU v5 lite": (16, 15.75),
    "TPU v5": (95, 95.74),
    "TPU v6 lite": (32, 31.25),
    "TPU7x": (96, 94.75),
}
"""By kind: GiB of a device, and GiB that programs can use. Of a v5p (TPU v5) Google's page rounds 95.74 to 95."""


_UNKNOWN_GPU = int(16 * _GIB * GPU_FRACTION)
"""Bytes that programs can use of a GPU that is not described: a workstation has at least such a one."""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one device's memory."""

    total: int
    usable: int
    """Bytes that the buffers of a program can take."""


def device_memory(kind: str) -> DeviceMemory | None:
    """Return the memory of a device of this kind (`Devices.kind`, such as `TPU v5 lite`); None if it is unknown."""
    if kind in _TPUS:
        total, usable = _TPUS[kind]
        return DeviceMemory(round(total * _GIB), round(usable * _GIB))
    size = _gpu_memory().get(kind)
    return DeviceMemory(size, int(size * GPU_FRACTION)) if size else None


def gpu_memory(pod: Devices) -> int | None:
    """Return the bytes of a GPU's memory that programs can use; None if the devices are no GPUs."""
    if pod.platform != "gpu":
        return None
    memory = device_memory(pod.kind)
    return memory.usable if memory else _UNKNOWN_GPU


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
