"""Gather parameters that the axis `fsdp` divides: a layer, or some rows of a large matrix, at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from ..models.gathering import Rows
from ..models.layers import ALIGNED
from .arrays import is_float
from .layout import MODEL, Partition


@dataclass(frozen=True)
class MeshGathering:
    """Gathers parameters of a partition over the devices of a mesh (see `models.gathering.Gathering`)."""

    partition: Partition
    mesh: Mesh

    def gather(self, name: str, x: jax.Array, dtype: jax.typing.DTypeLike | None = None) -> jax.Array:
        """Gather a parameter, or one layer of it, if it is divided. With `dtype`, a divided one is converted first."""
        divided, whole = self.partition.of_layer(name, x.shape), self.partition.gathered(name, x.shape)
        if divided == whole:
            return x
        return _gather(x if dtype is None or not is_float(x) else x.astype(dtype), divided, whole)

    def rows(self, name: str, x: jax.Array, along: int, pieces: int) -> Rows:
        """Split a matrix into pieces, to be gathered one at a time. Nothing is sent by that.

        Each piece has rows of every device, so that all of them send equal shares of it.

        Args:
            name: name of the parameter.
            x: the matrix, divided, [R, C] or [C, R].
            along: the dimension of its rows, 0 or 1.
            pieces: number of pieces, at most.
        """
        spec = [*self.partition.of_layer(name, x.shape), None, None]
        over, other = spec[along], spec[1 - along]
        devices = 1 if over is None else self.mesh.shape[over]
        matrix = x if along == 0 else x.T
        held = matrix.shape[0] // devices  # rows of one device
        size = -(-held // (pieces * ALIGNED)) * ALIGNED
        pieces = -(-held // size)
        parts = matrix.reshape(devices, held, -1)
        parts = jnp.pad(parts, ((0, 0), (0, pieces * size - held), (0, 0)))
        split = jnp.swapaxes(parts.reshape(devices, pieces, size, -1), 0, 1)
        split = jax.lax.with_sharding_constraint(split, PartitionSpec(None, over, None, other))
        place = jnp.arange(pieces)[:, None, None] * size + jnp.arange(size)
        numbers = jnp.where(place < held, jnp.arange(devices)[:, None] * held + place, -1)

        def gather(piece: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
            divided, whole = PartitionSpec(over, None, other), PartitionSpec(over if over == MODEL else None)
            return _gather(piece.astype(dtype), divided, whole).reshape(devices * size, -1)

        return Rows(split, numbers.reshape(pieces, -1), gather)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(x: jax.Array, divided: PartitionSpec, whole: PartitionSpec) -> jax.Array:
    """All-gather an array from the spec `divided` to the spec `whole`. Its gradient is reduce-scattered.

    Without a rule of its own the gradient would be constrained as the result is: reduced in full on every device.
    """
    return jax.lax.with_sharding_constraint(x, whole)


def _forward(x: jax.Array, divided: PartitionSpec, whole: PartitionSpec) -> tuple[jax.Array, None]:
    return _gather(x, divided, whole), None


def _backward(divided: PartitionSpec, _whole: PartitionSpec, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.with_sharding_constraint(gradient, divided),)


_gather.defvjp(_forward, _backward)
