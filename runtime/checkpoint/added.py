"""Arrays that are added to dictionaries of a program's state after the first step, for example by torch's optimizers.

The state that a resumed program gives does not have them, so a checkpoint holds where they belong and what they are.
"""

from __future__ import annotations

import importlib
from collections.abc import Container
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from ..array_names import Arrays
from .trees import Named, flat, has_content, is_tensor

_NUMBERS = {"bool": bool, "int": int, "float": float}


class AddedArray(TypedDict):
    """An array that the first state did not have."""

    keys: list[str | int]
    """Keys of dictionaries and indices of lists, from the root."""
    kind: str
    """`array` of numpy, `tensor` of torch, or the type of a number."""
    dtype: str
    """dtype of numpy."""
    shape: list[int]


Added = dict[str, AddedArray]
"""Arrays by their name in the checkpoint."""


def added(structure: Any, names: dict[str, str], state: Any) -> Added:
    """Return the arrays of `state` that a state with `structure` gains in its dictionaries.

    Args:
        structure: treedef of the first state.
        names: its arrays and texts; only the names are used.
        state: the state now.
    """
    paths = [(_name(path), path, leaf) for path, leaf in jax.tree.leaves_with_path(state)]
    if not (new := [row for row in paths if row[0] not in names]):
        return {}
    first = jax.tree.unflatten(structure, [0] * structure.num_leaves)
    rows: Added = {}
    for name, path, leaf in new:
        keys: list[Any] = [getattr(key, "key", getattr(key, "idx", None)) for key in path]
        kind = _kind(leaf)
        if kind is not None and has_content(leaf) and _is_open(first, path):
            value = leaf.detach().cpu().numpy() if kind == "tensor" else np.asarray(leaf)
            rows[name] = {"keys": keys, "kind": kind, "dtype": value.dtype.name, "shape": [*value.shape]}
    return rows


def forms(rows: Added) -> Named:
    """Return an empty numpy array of the form of each added array, by its path in the checkpoint."""
    return {_place(row): np.empty(row["shape"], jnp.dtype(row["dtype"])) for row in rows.values()}


def insert(state: Any, rows: Added, arrays: Arrays) -> None:
    """Insert the added arrays of a checkpoint into the dictionaries of a restored state, unless it has them.

    Args:
        state: the restored state, which is changed.
        rows: the added arrays.
        arrays: all arrays of the checkpoint.
    """
    values = flat(arrays) if rows else {}
    for row in rows.values():
        node = state
        for key in row["keys"][:-1]:
            node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
        node.setdefault(row["keys"][-1], _value(row["kind"], np.asarray(values[_place(row)])))


def check_saved(rows: Any, names: Container[str]) -> None:
    """Raise TypeError, ValueError or KeyError unless `rows` has the form that `added` returns, with arrays of `names`."""
    for name, row in dict(rows).items():
        if name not in names or ".".join(_place(row)) != name:
            raise ValueError(f"{name} is not in the checkpoint")
        if row["kind"] not in ("array", "tensor", *_NUMBERS):
            raise ValueError(f"unknown kind of {name}")
        if not all(type(key) in (str, int) for key in row["keys"]):
            raise TypeError(f"keys of {name} are neither text nor numbers")
        try:
            np.empty(row["shape"], jnp.dtype(row["dtype"]))
        except MemoryError:
            raise ValueError(f"{name} would be larger than this machine's memory") from None


def _is_open(first: Any, path: tuple[Any, ...]) -> bool:
    """Return whether `path` leads from the root of `first` to a new entry of a dictionary, made of dictionaries only."""
    for depth, key in enumerate(path):
        if isinstance(first, dict) and isinstance(key, jax.tree_util.DictKey) and type(key.key) in (str, int):
            if key.key not in first:
                below = path[depth:]
                return all(isinstance(key, jax.tree_util.DictKey) and type(key.key) in (str, int) for key in below)
            first = first[key.key]
        elif isinstance(first, (list, tuple)) and isinstance(key, jax.tree_util.SequenceKey) and key.idx < len(first):
            first = first[key.idx]
        else:
            return False
    return False


def _kind(leaf: Any) -> str | None:
    if is_tensor(leaf):
        return "tensor"
    if type(leaf) is np.ndarray:
        return "array"
    if type(leaf) is int and not -(2**63) <= leaf < 2**63:
        return None
    return type(leaf).__name__ if type(leaf) in _NUMBERS.values() else None


def _value(kind: str, value: np.ndarray) -> Any:
    if kind == "tensor":
        return importlib.import_module("torch").tensor(value)
    return value if kind == "array" else _NUMBERS[kind](value.item())


def _place(row: AddedArray) -> tuple[str, ...]:
    return tuple(map(str, row["keys"]))


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(jax.tree_util.keystr((key,), simple=True) for key in path)
