"""A pod that programs are compiled for. It need not exist: the compilers of TPUs and GPUs work without a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """What the compiler has to know about a slice, sent by the launcher to the process that compiles."""

    slice: str
    """Name of the slice, such as `v5litepod-16`."""
    platform: str
    """`tpu` or `cuda`."""
    topology: str
    """For TPUs libtpu's name of one slice's topology, such as `v5e:4x4`; for GPUs `1 x hosts x GPUs of a host`."""
    devices: int
    processes: int
    slices: int = 1
    host: tuple[int, ...] = ()
    """For TPUs the chips of a host along each dimension of the topology; empty: libtpu's own."""
    gpu: str = ""
    """For GPUs the model, a file in `runtime/gpus`."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Target:
        """Return the target whose fields were sent as JSON."""
        return cls(**{**fields, "host": tuple(fields["host"])})
