"""Describe how an array is sharded over devices, in words and as a picture."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from ..job_report import Layout
from ..wording import counted

_DRAWN = 8
"""Maximum number of parts, and of devices per part, that a picture shows; above that the words are clearer."""


def layout(name: str, array: Any, devices: int) -> Layout:
    """Describe an array or `jax.ShapeDtypeStruct` that has a sharding; `devices` is the number of devices in the slice."""
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
    each = f", each on {counted(on // parts, 'device')}" if on > parts else ""
    return f"split{axes} in {parts} parts of {list(part)}{each}"


def _axes(sharding: Sharding, dimensions: list[int]) -> str:
    """Return the axes of the mesh over which `dimensions` are split, as text."""
    if not isinstance(sharding, NamedSharding):
        return ""
    entries = [sharding.spec[i] for i in dimensions if i < len(sharding.spec)]
    names = [name for entry in entries if entry for name in ([entry] if isinstance(entry, str) else entry)]
    return f" over {' x '.join(map(str, names))}" if names else ""


def draw(array: Any, width: int, most: int = _DRAWN) -> str:
    """Return JAX's picture of the sharding of two dimensions; empty if it is too large or not possible.

    The dimensions are those that are divided, and otherwise the last: of an array that is stacked over layers, one layer.
    """
    shape, sharding = tuple(array.shape), array.sharding
    part = sharding.shard_shape(shape)
    parts, on = _parts(shape, part), len(sharding.device_set)
    divided = [i for i in range(len(shape)) if part[i] != shape[i]]
    if not shape or on == 1 or parts > most or on // parts > most or len(divided) > 2:
        return ""
    if len(shape) > 2:
        if not isinstance(sharding, NamedSharding):
            return ""
        others = [i for i in range(len(shape)) if i not in divided]
        drawn = sorted([*divided, *others[len(divided) - 2 :][: 2 - len(divided)]])
        entries = [*sharding.spec, *[None] * len(shape)]
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*[entries[i] for i in drawn]))
        shape = tuple(shape[i] for i in drawn)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        jax.debug.visualize_sharding(shape, sharding, use_color=False, scale=0.4, max_width=width)
    return out.getvalue().rstrip()


def bytes_per_device(tree: Any) -> int:
    """Return the bytes of a tree of sharded arrays on one device: the device that holds most."""
    return sum(
        math.prod(leaf.sharding.shard_shape(tuple(leaf.shape))) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
    )
