"""Lay arrays, written as JAX prints their types, out on a mesh, and compile their product.

`16@data,32@model` is an array of 16 x 32 whose first axis is divided over the mesh axis `data` and the second over `model`;
`32@(data,model)` is divided over both, `32` over none.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ..contract import UserError
from .layout import Layout, draw, layout

_DIMENSION = re.compile(r"(\d{1,12})(?:@(?:(\w+)|\(([\w, ]+)\)))?")
_COLLECTIVES = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
_MOST = 64
"""Largest number of devices for which a picture is drawn."""
EXAMPLE = '"16@data,32@model"'


@dataclass(frozen=True)
class Spec:
    """An array as the user wrote it."""

    text: str
    shape: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...]
    """The axes of the mesh that divide each dimension."""

    @property
    def partition(self) -> PartitionSpec:
        return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in self.axes))


@dataclass(frozen=True)
class Drawn:
    """An array on the mesh."""

    layout: Layout
    spec: str
    picture: str


@dataclass(frozen=True)
class Product:
    """The product of two matrices, as the compiler lays it out."""

    result: Drawn
    collectives: dict[str, int]
    """Communication in the compiled program, by kind."""
    explicit: str
    """Type of the product where layouts are part of the type, or what JAX asks for then."""


@dataclass(frozen=True)
class MeshReport:
    """Report on arrays on a mesh."""

    mesh: dict[str, int]
    arrays: tuple[Drawn, ...]
    product: Product | None


def parse_array(text: str, mesh: Mapping[str, int]) -> Spec:
    """Return the array that `text` describes. Raises UserError if it is malformed or does not fit the mesh."""
    parts = re.findall(r"[^,(]+(?:\([^)]*\))?", text.replace(" ", ""))
    matches = [_DIMENSION.fullmatch(part) for part in parts]
    if not parts or not all(matches) or ",".join(parts) != text.replace(" ", ""):
        raise UserError(
            f"--array {text}: not an array; write its sizes and the mesh axes that divide them, such as {EXAMPLE} or "
            '"32@(data,model),8"'
        )
    shape = tuple(int(match[1]) for match in matches if match)
    axes = tuple(tuple(filter(None, (match[2] or match[3] or "").split(","))) for match in matches if match)
    used = [axis for entry in axes for axis in entry]
    for axis in used:
        if axis not in mesh:
            raise UserError(f"--array {text}: the mesh has no axis {axis!r}; it has {', '.join(mesh)}")
        if used.count(axis) > 1:
            raise UserError(f"--array {text}: the axis {axis} divides it twice; an axis can divide one dimension only")
    for size, entry in zip(shape, axes, strict=True):
        pieces = math.prod(mesh[axis] for axis in entry)
        if size % pieces or not size:
            raise UserError(
                f"--array {text}: {size} does not divide into {pieces} parts ({' x '.join(entry) or 'it is empty'}); "
                f"{max(1, size // pieces) * pieces} would"
            )
    return Spec(text, shape, axes)


def look_at_arrays(mesh: Mapping[str, int], texts: Sequence[str], width: int) -> MeshReport:
    """Lay out the arrays on a mesh over the first devices; of two matrices that fit also compile their product.

    Raises UserError for arrays that are malformed, do not fit the mesh, or do not fit each other.
    """
    specs = [parse_array(text, mesh) for text in texts]
    count = math.prod(mesh.values())
    devices = np.array(jax.devices()[:count]).reshape(tuple(mesh.values()))
    automatic = Mesh(devices, tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))
    drawn = tuple(_drawn(spec.text, spec.shape, NamedSharding(automatic, spec.partition), width) for spec in specs)
    product = _product(specs[0], specs[1], automatic, width) if len(specs) == 2 else None
    return MeshReport(dict(mesh), drawn, product)


def _drawn(name: str, shape: tuple[int, ...], sharding: Any, width: int) -> Drawn:
    array = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    words = layout(name, array, len(sharding.device_set))
    return Drawn(words, _partition_text(sharding), draw(array, width, most=_MOST))


def _partition_text(sharding: Any) -> str:
    return f"P({', '.join(map(repr, sharding.spec))})" if isinstance(sharding, NamedSharding) else str(sharding)


def _product(a: Spec, b: Spec, mesh: Mesh, width: int) -> Product:
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise UserError(
            f"--array {a.text} --array {b.text}: no matrix product of {list(a.shape)} and {list(b.shape)}; two arrays must "
            "be [m, k] and [k, n]; give one array to look at it alone"
        )
    shardings = [NamedSharding(mesh, spec.partition) for spec in (a, b)]
    shapes = [
        jax.ShapeDtypeStruct(spec.shape, jnp.float32, sharding=s) for spec, s in zip((a, b), shardings, strict=True)
    ]
    compiled = jax.jit(jnp.matmul).lower(*shapes).compile()
    out: Any = compiled.output_shardings
    collectives = Counter(_COLLECTIVES.findall(compiled.as_text() or ""))
    shape = (a.shape[0], b.shape[1])
    return Product(_drawn("product", shape, _named(out, mesh, shape), width), dict(collectives), _explicit(a, b, mesh))


def _named(sharding: Any, mesh: Mesh, shape: tuple[int, ...]) -> Any:
    """Return the compiler's layout in terms of the mesh, where that is possible."""
    choices = [(), *((axis,) for axis in mesh.axis_names), tuple(mesh.axis_names)]
    for rows in choices:
        for columns in choices:
            if set(rows) & set(columns):
                continue
            entries = [axes[0] if len(axes) == 1 else axes or None for axes in (rows, columns)]
            named = NamedSharding(mesh, PartitionSpec(*entries))
            if sharding.is_equivalent_to(named, len(shape)):
                return named
    return sharding


def _explicit(a: Spec, b: Spec, mesh: Mesh) -> str:
    """Trace the product where the layout is a part of the type."""
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * len(mesh.axis_names))
    shapes = [
        jax.ShapeDtypeStruct(spec.shape, jnp.float32, sharding=NamedSharding(explicit, spec.partition))
        for spec in (a, b)
    ]
    with jax.set_mesh(explicit):
        try:
            return str(jax.typeof(jax.eval_shape(jnp.matmul, *shapes)))
        except Exception as error:  # ShardingTypeError: the layout of the result is not plain
            why = str(error).strip().splitlines()[0].partition(". ")[0]
            return f"an error ({why}); give the product an out_sharding"
