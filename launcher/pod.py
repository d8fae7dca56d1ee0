"""What a pod is made of."""

from __future__ import annotations

from dataclasses import dataclass

from .slices import Slice


@dataclass(frozen=True)
class Host:
    """One machine of a pod."""

    name: str
    """Unique in the pod; what the user sees."""
    address: str
    """Where the other hosts reach it: the coordinator listens there if this is host 0."""


@dataclass(frozen=True)
class Pod:
    """The hosts of a slice, in the order of their process ids."""

    slice: Slice
    hosts: tuple[Host, ...]
    transport: str
    """How the hosts are reached: the name of a module in `launcher.transport`."""
    platform: str
    """What JAX computes on there: `cpu`, `cuda` or `tpu`."""
