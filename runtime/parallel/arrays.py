"""Helpers for trees of arrays: microbatches, dtypes, shardings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..state import Batch, TrainState


def microbatches(batch: Batch, key: jax.Array, count: int) -> tuple[Batch, jax.Array]:
    """Split a batch, [B, ...], into `count` microbatches, [count, B / count, ...], and its key into keys, [count]."""
    parts = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)
    return parts, jax.random.split(key, count)


def merge_model_states(states: Any) -> Any:
    """Merge model states that are stacked along a leading axis: the mean of floats, the maximum of integers and booleans.

    Integers are counters, which are equal in all of the states.
    """
    return jax.tree.map(lambda x: x.mean(0, dtype=x.dtype) if is_float(x) else x.max(0), states)


def is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def strip_weak_types(state: TrainState) -> TrainState:
    """Drop weak types, which some optimizers start with: with them, the second step would be compiled again."""
    typed: TrainState = jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.asarray(x).dtype), state)
    return typed


def with_sharding(tree: Any, sharding: Any) -> Any:
    """Return `tree` as ShapeDtypeStructs with shardings: one sharding for all leaves, or a tree of them."""
    shardings = _broadcast(tree, sharding)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def put_global(tree: Any, sharding: Any) -> Any:
    """Place arrays, which every process has in full, as global arrays.

    Args:
        tree: the arrays, of jax or numpy.
        sharding: one sharding for all leaves, or a tree of them.
    """
    leaves, structure = jax.tree.flatten(tree)
    shardings = jax.tree.leaves(_broadcast(tree, sharding))
    del tree
    if all(s.is_fully_addressable for s in shardings):
        return jax.tree.unflatten(structure, jax.device_put(leaves, shardings))
    for number, (leaf, s) in enumerate(zip(leaves, shardings, strict=True)):
        host = np.asarray(leaf)
        leaves[number] = jax.make_array_from_callback(host.shape, s, host.__getitem__)
    return jax.tree.unflatten(structure, leaves)


def _broadcast(tree: Any, sharding: Any) -> Any:
    return jax.tree.map(lambda _: sharding, tree) if isinstance(sharding, jax.sharding.Sharding) else sharding
