"""Describe the layout of an array over devices, in words and as a picture."""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from .units import plural

_DRAWN = 8
"""Limit of parts, and of devices with one part, that are drawn; for more the words are clearer."""


@dataclass(frozen=True)
class Layout:
    """Layout of one array over the devices."""

    name: str
    array: str
    """Type and shape: `int32[16, 129]`."""
    where: str
    part: tuple[int, ...]
    """Shape of the part on one device."""
    parts: int
    """Number of different parts."""
    devices: int


def layout(name: str, array: Any, devices: int) -> Layout:
    """Return the layout of an array or `jax.ShapeDtypeStruct` that has a sharding; `devices` are those of the slice."""
    shape, sharding = tuple(array.shape), array.sharding
    part = sharding.shard_shape(shape)
    parts = _parts(shape, part)
    on = len(sharding.device_set)
    return Layout(
        name, f"{array.dtype}{list(shape)}", _words(shape, part, parts, on, sharding, devices), part, parts, on
    )


def _parts(shape: tuple[int, ...], part: tuple[int, ...]) -> int:
    return math.prod(whole // piece for whole, piece in zip(shape, part, strict=True) if piece)


def _words(shape: tuple[int, ...], part: tuple[int, ...], parts: int, on: int, sharding: Sharding, devices: int) -> str:
    if parts == 1 and on == 1:
        return "whole on its only device" if devices == 1 else f"whole on one of the {devices} devices"
    if parts == 1:
        return f"replicated: the same on all {on} devices"
    axes = _axes(sharding, [i for i, (whole, piece) in enumerate(zip(shape, part, strict=True)) if whole != piece])
    each = f", each on {plural(on // parts, 'device')}" if on > parts else ""
    return f"split{axes} in {parts} parts of {list(part)}{each}"


def _axes(sharding: Sharding, dimensions: list[int]) -> str:
    """Return the axes of the mesh over which those dimensions are split."""
    if not isinstance(sharding, NamedSharding):
        return ""
    entries = [sharding.spec[i] for i in dimensions if i < len(sharding.spec)]
    names = [name for entry in entries if entry for name in ([entry] if isinstance(entry, str) else entry)]
    return f" over {' x '.join(map(str, names))}" if names else ""


def draw(array: Any, width: int, most: int = _DRAWN) -> str:
    """Return JAX's picture of at most two dimensions; empty where it would be too large, or cannot be made."""
    shape, sharding = tuple(array.shape), array.sharding
    part = sharding.shard_shape(shape)
    parts, on = _parts(shape, part), len(sharding.device_set)
    if not shape or on == 1 or parts > most or on // parts > most or part[2:] != shape[2:]:
        return ""
    if len(shape) > 2:
        if not isinstance(sharding, NamedSharding):
            return ""
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:2]))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        jax.debug.visualize_sharding(shape[:2], sharding, use_color=False, scale=0.4, max_width=width)
    return out.getvalue().rstrip()


def bytes_per_device(tree: Any) -> int:
    """Return how many bytes of a tree of arrays, each with a sharding, the fullest device holds."""
    return sum(
        math.prod(leaf.sharding.shard_shape(tuple(leaf.shape))) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
    )
