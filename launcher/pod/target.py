"""The target of a slice: the devices under the name that a compiler gives them."""

from __future__ import annotations

import re

from podrun.runtime.contract import UserError
from podrun.runtime.target import Target

from .gpu_slices import declared_model
from .slices import Slice

_TPU_NAMES = {"v5litepod": "v5e"}
"""Maps generations in slice names to libtpu's names, where they differ."""
_TWO_DEVICES = ("v4",)
"""Generations for which libtpu compiles with two devices per chip, although real chips have one (megacore)."""
GPUS = ("a100", "a100-40gb", "h100", "h200", "b200", "b300", "gb200", "gb300", "l4")
"""Models of GPUs with a description in `runtime/gpus`. `a100` has 80 GB."""


def target_of(slice: Slice, gpu: str | None = None) -> Target | None:
    """Return the target of a slice; None for CPUs, and for GPUs of unknown model.

    Args:
        slice: TPUs, GPUs or CPUs. `a100-16` means GPUs with 80 GB.
        gpu: model of the GPUs, one of `GPUS`; None: the model in the name of the slice.

    Raises:
        UserError: podrun does not know this model, the slice has no GPUs, or the compiler cannot compile for it.
    """
    if gpu and gpu not in GPUS:
        raise UserError(f"unknown GPU {gpu!r}; the compiler's descriptions are of {', '.join(GPUS)} (a100 has 80 GB)")
    if gpu and slice.kind != "gpu":
        raise UserError(f"--gpu {gpu}: {slice.name} is a slice of {slice.kind.upper()}s; leave it out")
    if slice.kind == "gpu":
        model = gpu or (declared_model(slice.name) or "").lower()
        shape = f"1x{slice.hosts}x{slice.devices_per_host}"
        return Target(slice.name, "cuda", shape, slice.devices, slice.hosts, gpu=model) if model in GPUS else None
    if slice.kind != "tpu":
        return None
    generation = re.sub(r"^\d+x", "", slice.name).partition("-")[0]
    if generation in _TWO_DEVICES:
        raise UserError(
            f"{slice.name}: the TPU compiler treats a chip of {generation} as two devices with half the memory each, but a "
            "real chip is one device, so its report would be wrong"
        )
    return Target(
        slice.name,
        "tpu",
        f"{_TPU_NAMES.get(generation, generation)}:{slice.topology}",
        slice.devices,
        slice.hosts,
        slice.slices,
        _host(slice),
    )


def _host(slice: Slice) -> tuple[int, ...]:
    """Return the number of chips of a host in each dimension; empty for 2x2, which libtpu assumes."""
    bounds = tuple(int(n) for n in slice.topology.split("x"))
    if slice.hosts_per_slice > 1 or slice.chips // slice.slices == 4:
        return ()
    return (*bounds, *[1] * (3 - len(bounds)))
