"""Convert any pytree to named arrays and texts for a checkpoint, and back.

Saved as arrays: arrays of numpy and JAX, tensors of torch, numbers. Saved as JSON: text, bytes, large integers. Other leaves,
such as functions in an Equinox module, are not saved: a restored tree has the program's own, and they must not change
during the run (`kept_as_is`).
"""

from __future__ import annotations

import base64
import hashlib
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..array_names import Arrays, places
from ..contract import UserError
from ..distributed import as_numpy
from .save import writes_at_once

Leaf = Any
Named = dict[tuple[str, ...], Leaf]
"""Leaves by their path in the tree: ("layers", "0", "kernel")."""
Texts = dict[str, list[str]]
"""[kind, text] of each leaf that is saved as JSON, by name."""
_TEXTS = (str, bytes, bytearray)


def named_leaves(tree: Any) -> Named:
    """Return the arrays and numbers of a tree by path.

    Raises UserError if there are none, if an array has no numeric dtype, or if two have the same name.
    """
    leaves = {place or ("value",): leaf for place, leaf in places(tree, "the state") if _is_saved(leaf)}
    for name, leaf in leaves.items():
        try:
            dtype = _dtype(leaf)
        except (TypeError, RuntimeError) as error:  # torch's bfloat16, and meta tensors
            raise UserError(f"{'.'.join(name)} of the state cannot be saved: {error}; leave it out") from None
        kinds = (np.number, np.bool_, jax.dtypes.prng_key)
        if getattr(dtype, "kind", "") == "m" or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
            raise UserError(
                f"{'.'.join(name)} of the state is an array of {dtype}, which cannot be saved; leave it out"
            )
    if not any(has_content(leaf) for leaf in leaves.values()):
        kind = type(tree).__name__
        raise UserError(
            f"the state has no arrays and no numbers, so nothing to save; give a pytree of them, not {kind}"
        )
    return leaves


def texts(tree: Any) -> Texts:
    """Return a tree's texts, bytes and integers of more than 64 bits, encoded for JSON."""
    named = {".".join(place): leaf for place, leaf in places(tree, "the state") if _is_text(leaf)}
    return {name: _written(leaf) for name, leaf in named.items()}


def check_texts(written: Any) -> None:
    """Raise ValueError or TypeError unless `written` has the form that `texts` returns."""
    for _, (kind, text) in dict(written).items():
        _read(kind, text)


def kept_as_is(tree: Any) -> dict[str, str]:
    """Return digests of the leaves that are not saved, by name, so that a change can be noticed.

    Raises UserError for a leaf that has no digest, such as an open file.
    """
    leaves = {
        ".".join(place): leaf for place, leaf in places(tree, "the state") if not _is_saved(leaf) and not _is_text(leaf)
    }
    return {name: _digest(name, leaf) for name, leaf in leaves.items()}


def same_everywhere(tree: Any) -> dict[str, Leaf]:
    """Return the leaves that must be equal on all processes, by name: all but arrays that span processes."""
    leaves = {".".join(place): leaf for place, leaf in places(tree, "the state") if _is_saved(leaf) or _is_text(leaf)}
    return {
        name: _array(leaf) if is_tensor(leaf) else leaf
        for name, leaf in leaves.items()
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    }


def spans_processes(tree: Any) -> bool:
    """Return whether some array of the tree is divided over processes."""
    return any(_is_divided(leaf) for leaf in named_leaves(tree).values())


def savable(tree: Any) -> Arrays:
    """Return the arrays to save, nested: numpy arrays, but global JAX arrays if they are divided over processes.

    On CPU the numpy arrays share the tree's memory.
    """
    return _nested({name: _savable(leaf) for name, leaf in named_leaves(tree).items() if has_content(leaf)})


def template(tree: Any, more: Named | None = None) -> Arrays:
    """Return the template to restore into: `jax.ShapeDtypeStruct` for committed JAX arrays, numpy arrays for the rest.

    `more`: templates of arrays that the tree need not have.
    """
    named = {name: _template(leaf) for name, leaf in named_leaves(tree).items() if has_content(leaf)}
    return _nested({**(more or {}), **named})


def restored(tree: Any, arrays: Arrays, written: Texts) -> Any:
    """Return `tree` with the arrays and texts of a checkpoint; each leaf keeps its type and devices."""
    saved = flat(arrays)

    def value(place: tuple[str, ...], leaf: Leaf) -> Leaf:
        if _is_saved(leaf):
            return _placed(leaf, saved[place or ("value",)]) if has_content(leaf) else leaf
        if _is_text(leaf) and ".".join(place) in written:  # older versions did not save texts
            return type(leaf)(_read(*written[".".join(place)]))
        return leaf

    leaves = [value(place, leaf) for place, leaf in places(tree, "the state")]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def described(tree: Any) -> dict[str, str]:
    """Return the dtype and shape of each array by name: {"layers.0.kernel": "float32[3,2]"}."""
    rows = {}
    for name, leaf in named_leaves(tree).items():
        shape = ",".join(map(str, getattr(leaf, "shape", ())))
        rows[".".join(name)] = f"{getattr(leaf, 'dtype', type(leaf).__name__)}[{shape}]"
    return rows


def _is_saved(leaf: Leaf) -> bool:
    if _is_text(leaf):
        return False
    return is_tensor(leaf) or isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))


def _is_text(leaf: Leaf) -> bool:
    """Return whether a leaf is saved as JSON, because no array can hold it."""
    return type(leaf) in (*_TEXTS, np.str_, np.bytes_) or (type(leaf) is int and not -(2**63) <= leaf < 2**63)


def is_tensor(leaf: Leaf) -> bool:
    """Return whether a leaf is a torch tensor or similar, judged by its methods, so that torch is not imported."""
    methods = ("detach", "cpu", "numpy", "new_tensor")
    return not isinstance(leaf, type) and all(callable(getattr(leaf, name, None)) for name in methods)


def _dtype(leaf: Leaf) -> Any:
    """Return the numpy dtype of a leaf that is saved.

    Raises TypeError or RuntimeError for a tensor that numpy has no dtype for.
    """
    return _array(leaf.detach().new_tensor(0) if is_tensor(leaf) else leaf).dtype


def _array(leaf: Leaf) -> Any:
    """Return a saved leaf as an array of JAX or numpy. A tensor's array shares its memory."""
    if is_tensor(leaf):
        return leaf.detach().cpu().numpy()
    return leaf if isinstance(leaf, (jax.Array, np.ndarray)) else np.asarray(leaf)


def has_content(leaf: Leaf) -> bool:
    """Return whether an array has any elements. orbax does not save empty arrays."""
    return 0 not in getattr(leaf, "shape", ())


def _written(leaf: Leaf) -> list[str]:
    if isinstance(leaf, int):
        return ["int", hex(leaf)]
    return ["str", str(leaf)] if isinstance(leaf, str) else ["bytes", base64.b64encode(leaf).decode()]


def _read(kind: str, text: str) -> str | bytes | int:
    """Convert the text that `_written` has made of a dictionary's key back to the key. Raises ValueError, TypeError.

    `kind` is the type of the key: `int`, `str` or `bytes`.
    """
    if not isinstance(text, str) or kind not in ("int", "str", "bytes"):
        raise TypeError(f"not a text: {kind!r:.40}")
    if kind == "int":
        return int(text, 16)
    return text if kind == "str" else base64.b64decode(text)


def _digest(name: str, leaf: Leaf) -> str:
    """Return a digest of a leaf's content. Raises UserError if the leaf can be neither pickled nor called."""
    try:
        return hashlib.sha256(pickle.dumps(leaf)).hexdigest()
    except Exception:  # pickling may raise anything
        if callable(leaf) and not hasattr(leaf, "__next__"):  # such as a nested function
            return f"{type(leaf).__name__} {id(leaf)}"
    raise UserError(
        f"{name} of the state is {type(leaf).__name__}, which can neither be saved nor compared; leave it out, and save what "
        "a resumed run needs of it as arrays, numbers or text"
    )


def _is_key(leaf: Leaf) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_divided(leaf: Leaf) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated


def _savable(leaf: Leaf) -> Leaf:
    data = jax.random.key_data(leaf) if _is_key(leaf) else _array(leaf)
    if _is_divided(data):
        return data
    # Copy numpy arrays, which the program may change while they are written. JAX arrays are immutable.
    return as_numpy(data) if writes_at_once() or isinstance(data, jax.Array) else np.array(data)


def _template(leaf: Leaf) -> Leaf:
    data = jax.random.key_data(leaf) if _is_key(leaf) else _array(leaf)
    if isinstance(data, jax.Array) and data.committed:
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=data.sharding)
    return np.empty(data.shape, data.dtype)


def _placed(leaf: Leaf, value: Leaf) -> Leaf:
    """Return the restored `value` as the type of `leaf`, and on its devices."""
    if isinstance(leaf, jax.Array):
        if _is_key(leaf):
            # The data of a PRNG key array has one more axis than the key array.
            return jax.random.wrap_key_data(
                _on_devices(jax.random.key_data(leaf), value), impl=jax.random.key_impl(leaf)
            )
        return _on_devices(leaf, value)
    if isinstance(leaf, np.ndarray):
        return np.asarray(value)
    if is_tensor(leaf):
        tensor = leaf.detach().new_tensor(np.asarray(value))  # keeps dtype and device
        return tensor.requires_grad_() if getattr(leaf, "requires_grad", False) else tensor
    return type(leaf)(np.asarray(value).item())


def _on_devices(leaf: jax.Array, value: Leaf) -> jax.Array:
    if isinstance(value, jax.Array):  # restored with its sharding already
        return value
    if not leaf.committed:  # stays uncommitted, so that JAX may move it
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


def flat(tree: Arrays, above: tuple[str, ...] = ()) -> Named:
    """Return the leaves of nested dictionaries by path."""
    leaves: Named = {}
    for key, value in tree.items():
        leaves.update(flat(value, (*above, key)) if isinstance(value, dict) else {(*above, key): value})
    return leaves
