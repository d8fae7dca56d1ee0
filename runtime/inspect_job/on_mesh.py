"""Shard arrays over a mesh, and compile an expression over them. Arrays are written as JAX prints their types.

`16@data,32@model` is an array of shape [16, 32] whose first dimension is divided over the mesh axis `data` and the second
over `model`. `32@(data,model)` is divided over both axes, `32` over none. `16,32 on 3` is on device 3 only. `A=16@data` has a
name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding

from ..contract import UserError
from ..job_report import Layout
from .array_spec import Spec, parse_arrays
from .collectives import Collective, collectives
from .expression import Expression, parse_expression
from .layout import draw, layout

_MOST = 64
"""Maximum number of devices in a picture."""


@dataclass(frozen=True)
class Drawn:
    """An array on the mesh, with its picture."""

    layout: Layout
    spec: str
    picture: str


@dataclass(frozen=True)
class Result:
    """The value of an expression, with the sharding that the compiler chooses."""

    value: Drawn
    collectives: tuple[Collective, ...]
    """Collective operations in the compiled program."""
    explicit: str | None
    """Type of the value with explicit sharding, or the error that JAX raises then; None on a single device."""


@dataclass(frozen=True)
class MeshReport:
    """The report about arrays on a mesh."""

    mesh: dict[str, int]
    arrays: tuple[Drawn, ...]
    result: Result | None


def look_at_arrays(mesh: Mapping[str, int], texts: Sequence[str], expression: str | None, width: int) -> MeshReport:
    """Shard float32 arrays over a mesh of this process's first devices, and compile an expression over them.

    Args:
        mesh: size of each axis, by name.
        texts: the arrays, as the user wrote them.
        expression: the expression; None: the product, if there are exactly two arrays and they have no names.
        width: width of the pictures in characters.

    Raises:
        UserError: an array or the expression is malformed, or they do not fit the mesh or each other.
    """
    specs = parse_arrays(texts, mesh)
    if expression is None and len(specs) == 2 and not any(spec.named for spec in specs.values()):
        expression = "A @ B"
    devices = np.array(jax.devices()[: math.prod(mesh.values())]).reshape(tuple(mesh.values()))
    grid = Mesh(devices, tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))
    arrays = {name: _shape(spec, grid) for name, spec in specs.items()}
    show_names = expression is not None or any(spec.named for spec in specs.values())
    drawn = tuple(_drawn(spec.title(show_names), arrays[name], devices.size, width) for name, spec in specs.items())
    result = None if expression is None else _result(parse_expression(expression, specs), specs, grid, width)
    return MeshReport(dict(mesh), drawn, result)


def _shape(spec: Spec, mesh: Mesh) -> jax.ShapeDtypeStruct:
    sharding: Any = NamedSharding(mesh, spec.partition)
    if spec.device is not None:
        sharding = SingleDeviceSharding(mesh.devices.flat[spec.device])
    return jax.ShapeDtypeStruct(spec.shape, jnp.float32, sharding=sharding)


def _drawn(name: str, array: jax.ShapeDtypeStruct, devices: int, width: int) -> Drawn:
    sharding: Any = array.sharding
    spec = str(sharding)
    if isinstance(sharding, NamedSharding):
        entries = [*sharding.spec, *[None] * (len(array.shape) - len(sharding.spec))]  # one entry per dimension
        spec = f"P({', '.join(map(repr, entries))})"
    elif len(sharding.device_set) == 1:
        spec = f"on device {next(iter(sharding.device_set)).id}"
    return Drawn(layout(name, array, devices), spec, draw(array, width, most=_MOST))


def _result(expression: Expression, specs: Mapping[str, Spec], mesh: Mesh, width: int) -> Result:
    used = {name: specs[name] for name in expression.names}
    _check_devices(expression, used, mesh)
    shapes = {name: _shape(spec, mesh) for name, spec in used.items()}
    try:
        compiled = jax.jit(expression.__call__).lower(shapes).compile()
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"--expr {expression.text}: it cannot be compiled: {str(error).splitlines()[0]}") from None
    sharding: Any = compiled.output_shardings
    value = jax.eval_shape(expression, {name: jax.ShapeDtypeStruct(s.shape, s.dtype) for name, s in shapes.items()})
    alone = all(spec.device is not None for spec in used.values())
    if alone:
        sharding = next(iter(shapes.values())).sharding
    out = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
    explicit = None if alone else _explicit(expression, used, mesh)
    drawn = _drawn(expression.text.strip(), out, mesh.devices.size, width)
    return Result(drawn, collectives(compiled.as_text() or ""), explicit)


def _check_devices(expression: Expression, used: Mapping[str, Spec], mesh: Mesh) -> None:
    """Raise UserError if the arrays are on different devices, which JAX does not allow in one computation."""
    places = {spec.device for spec in used.values()}
    if len(places) == 1 or mesh.devices.size == 1:
        return
    where = ", ".join(f"{name} on {_place(spec, mesh)}" for name, spec in used.items())
    raise UserError(
        f"--expr {expression.text}: its arrays are on different devices ({where}), which JAX refuses; lay all of them out on "
        "the mesh (without `on`, an array is the same on all devices), or put all on one device"
    )


def _place(spec: Spec, mesh: Mesh) -> str:
    return f"device {spec.device}" if spec.device is not None else f"all {mesh.devices.size} devices"


def _explicit(expression: Expression, used: Mapping[str, Spec], mesh: Mesh) -> str:
    """Trace the expression with explicit sharding. Return the type of the value, or JAX's error, as text."""
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * len(mesh.axis_names))
    shapes = {name: _shape(spec, explicit) for name, spec in used.items()}
    with jax.set_mesh(explicit):
        try:
            return str(jax.typeof(jax.eval_shape(expression, shapes)))
        except Exception as error:  # ShardingTypeError: the sharding of the result is ambiguous
            why = str(error).strip().splitlines()[0].partition(". ")[0]
            return f"an error ({why}); give the operation an out_sharding"
