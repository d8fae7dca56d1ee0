"""Turn any pytree into named arrays for a checkpoint, and back.

Only arrays and numbers are saved. All else in a tree, such as the functions that are leaves of an Equinox module, comes from
the tree that is restored into.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..array_names import places
from ..contract import UserError
from ..distributed import as_numpy
from .names import Arrays
from .save import writes_at_once

Leaf = Any
Named = dict[tuple[str, ...], Leaf]
"""Leaves by their place in the tree: ("layers", "0", "kernel")."""


def named_leaves(tree: Any) -> Named:
    """Return the arrays and numbers of a tree by name.

    Raises UserError if there are none, if one is no array of numbers, or if two have the same name.
    """
    leaves = {}
    for place, leaf in places(tree, "the state"):
        if not _is_saved(leaf):
            continue
        name = place or ("value",)
        if isinstance(leaf, np.ndarray | np.generic) and (leaf.dtype.kind in "OSU" or leaf.dtype.names):
            raise UserError(
                f"{'.'.join(name)} of the state is an array of {leaf.dtype}, which cannot be saved; leave it out"
            )
        leaves[name] = leaf
    if not leaves:
        kind = type(tree).__name__
        raise UserError(
            f"the state has no arrays and no numbers, so nothing to save; give a pytree of them, not {kind}"
        )
    return leaves


def spans_processes(tree: Any) -> bool:
    """Return whether no process has all of the tree: some array of it is divided over processes."""
    return any(_is_divided(leaf) for leaf in named_leaves(tree).values())


def savable(tree: Any) -> Arrays:
    """Return what is saved: numpy arrays, and arrays over all processes where no process has the whole.

    On CPU the numpy arrays are those of the tree, or views of its memory.
    """
    return _nested({name: _savable(leaf) for name, leaf in named_leaves(tree).items()})


def template(tree: Any) -> Arrays:
    """Return what a checkpoint is read into: numpy arrays, or the layout of arrays that stay where they are laid out."""
    return _nested({name: _template(leaf) for name, leaf in named_leaves(tree).items()})


def restored(tree: Any, arrays: Arrays) -> Any:
    """Return the tree with its arrays replaced by those of a checkpoint, each laid out as it is in `tree`."""
    flat = _flat(arrays)
    values = iter(_placed(leaf, flat[name]) for name, leaf in named_leaves(tree).items())
    return jax.tree.map(lambda leaf: next(values) if _is_saved(leaf) else leaf, tree)


def described(tree: Any) -> dict[str, str]:
    """Return the type and shape of each array by name: {"layers.0.kernel": "float32[3,2]"}."""
    rows = {}
    for name, leaf in named_leaves(tree).items():
        shape = ",".join(map(str, np.shape(leaf)))
        rows[".".join(name)] = f"{getattr(leaf, 'dtype', type(leaf).__name__)}[{shape}]"
    return rows


def _is_saved(leaf: Leaf) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))


def _is_key(leaf: Leaf) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_divided(leaf: Leaf) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated


def _savable(leaf: Leaf) -> Leaf:
    data = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if _is_divided(data):
        return data
    # The program may change its numpy arrays while they are written. jax's never change, not even views of them.
    return as_numpy(data) if writes_at_once() or isinstance(data, jax.Array) else np.array(data)


def _template(leaf: Leaf) -> Leaf:
    data = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if isinstance(data, jax.Array) and data.committed:
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=data.sharding)
    return np.empty(np.shape(data), getattr(data, "dtype", None) or np.asarray(data).dtype)


def _placed(leaf: Leaf, value: Leaf) -> Leaf:
    """Return `value`, as it was read, in the form of `leaf`: on its devices, or as a number of its type."""
    if isinstance(leaf, jax.Array):
        if _is_key(leaf):
            # A key's array has an axis more than the key.
            return jax.random.wrap_key_data(
                _on_devices(jax.random.key_data(leaf), value), impl=jax.random.key_impl(leaf)
            )
        return _on_devices(leaf, value)
    if isinstance(leaf, np.ndarray):
        return np.asarray(value)
    return type(leaf)(np.asarray(value).item())


def _on_devices(leaf: jax.Array, value: Leaf) -> jax.Array:
    if isinstance(value, jax.Array):  # orbax has read this process's part of it
        return value
    if not leaf.committed:  # JAX may move it to where it is needed, and must be able to as before
        return jnp.asarray(value)
    return jax.make_array_from_callback(value.shape, leaf.sharding, lambda index: value[index])


def _nested(leaves: Named) -> Arrays:
    """Return the leaves as nested dictionaries."""
    tree: Arrays = {}
    for name, leaf in leaves.items():
        node = tree
        for key in name[:-1]:
            node = node.setdefault(key, {})
        node[name[-1]] = leaf
    return tree


def _flat(tree: Arrays, above: tuple[str, ...] = ()) -> Named:
    leaves: Named = {}
    for key, value in tree.items():
        leaves.update(_flat(value, (*above, key)) if isinstance(value, dict) else {(*above, key): value})
    return leaves
