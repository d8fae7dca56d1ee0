"""Programs in XLA's text form from a few lines, and one with loops to compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podrun.runtime.inspect_job import hlo

COLLECTIVES = {"all-gather": 2 * 3 * 5, "collective-permute": 9 + 6 + 1}
"""Collectives of `looping`: weights of 3 x 5 layers, twice; and in loops of 9, of 6 and of an unknown number of turns."""


def program(*lines: str, others: str = "") -> hlo.Program:
    return hlo.read("\n".join(["HloModule x", others, "ENTRY %main (p: f32[]) -> f32[] {", *lines, "}"]))


def looping(devices: Sequence[Any]) -> Any:
    """Return a traced function whose loops send something in every turn."""
    mesh = Mesh(np.array(devices), ("device",))
    whole, divided = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ([], [None, None, "device"]))

    @jax.checkpoint
    def layer(x: Any, weights: Any) -> Any:
        return jnp.tanh(x @ jax.lax.with_sharding_constraint(weights, whole)), None

    def loss(weights: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, some: (jax.lax.scan(layer, x, some)[0], None), x, weights)[0].sum()

    def send(x: Any) -> Any:
        pairs = [(n, (n + 1) % len(devices)) for n in range(len(devices))]
        spec = PartitionSpec("device")
        return jax.shard_map(lambda x: jax.lax.ppermute(x, "device", pairs), mesh=mesh, in_specs=spec, out_specs=spec)(
            x
        )

    def function(weights: Any, x: Any, n: Any) -> Any:
        up = jax.lax.fori_loop(3, 12, lambda i, x: send(x * i), x)
        down = jax.lax.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 2, send(c[1] * c[0])), (11, x))[1]
        return jax.grad(loss)(weights, x), up, down, jax.lax.fori_loop(0, n, lambda i, x: send(x * i), x)

    shapes = [(3, 5, 8 * len(devices), 8 * len(devices)), (2 * len(devices), 8 * len(devices)), ()]
    arguments = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        for shape, dtype, sharding in zip(shapes, ("float32", "float32", "int32"), (divided, whole, whole), strict=True)
    ]
    return jax.jit(function).trace(*arguments)
