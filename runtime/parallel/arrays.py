"""Trees of arrays: their types, their shardings, and one state from those of several parts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..state import Batch, TrainState


def in_parts(batch: Batch, key: jax.Array, count: int) -> tuple[Batch, jax.Array]:
    """Return `count` equal parts of a batch, [count, B / count, ...], and keys for them, [count]."""
    parts = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)
    return parts, jax.random.split(key, count)


def merged(states: Any) -> Any:
    """Return one state of the model from those of several parts of a batch, along a leading axis.

    Numbers become means. Whatever counts steps is the same in all, and the largest is taken.
    """
    return jax.tree.map(lambda x: x.mean(0, dtype=x.dtype) if is_float(x) else x.max(0), states)


def is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def strongly_typed(state: TrainState) -> TrainState:
    """Drop weak types: some optimizers begin with Python's numbers, and the second step would be compiled again."""
    typed: TrainState = jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.asarray(x).dtype), state)
    return typed


def with_sharding(tree: Any, sharding: Any) -> Any:
    """Return the shapes and dtypes of `tree` with shardings: one for all, or a tree of them."""
    shardings = _for_each(tree, sharding)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def spread(tree: Any, sharding: Any) -> Any:
    """Return arrays with shardings, one for all or a tree of them, from whole ones, which every process has."""
    leaves, structure = jax.tree.flatten(tree)
    shardings = jax.tree.leaves(_for_each(tree, sharding))
    del tree
    if all(s.is_fully_addressable for s in shardings):
        return jax.tree.unflatten(structure, jax.device_put(leaves, shardings))
    for number, (leaf, s) in enumerate(zip(leaves, shardings, strict=True)):
        host = np.asarray(leaf)
        leaves[number] = jax.make_array_from_callback(host.shape, s, host.__getitem__)
    return jax.tree.unflatten(structure, leaves)


def _for_each(tree: Any, sharding: Any) -> Any:
    return jax.tree.map(lambda _: sharding, tree) if isinstance(sharding, jax.sharding.Sharding) else sharding
