"""Examples held as arrays in memory, and the checks that all sources of arrays share."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from ..config.task import examples_of
from ..contract import UserError
from .base import Batch, Dataset

Array = np.ndarray[Any, Any]
Pair = tuple[Array, Array]
"""Inputs and targets of the same examples."""

_SPLIT_SEED = 0
_MAX_CLASSES = 1 << 16  # more are likely identifiers, and the output layer would not fit in memory
_FULL_HASH = 1 << 25  # bytes; a larger array is hashed in part
_BLOCK = 1 << 16
_BLOCKS = 512


class ArrayExamples:
    """Inputs x and targets y in memory. `gather` multiplies x by `scale`, so that images can be held as bytes."""

    def __init__(self, x: Array, y: Array, scale: float | None = None, weighted: bool = False) -> None:
        self._x = np.ascontiguousarray(x)
        self._y = np.ascontiguousarray(y)
        self._scale = None if scale is None else np.float32(scale)
        self._weighted = weighted
        self.size = len(x)

    def gather(self, indices: Array, epochs: Array) -> Batch:
        """Return {"x": float32[B, ...], "y": int32[B] or float32[B, outputs]}, and "weights", float32[B], for validation."""
        x = self._x.take(indices, axis=0)
        if self._scale is not None:
            x = np.multiply(x, self._scale, dtype=np.float32)
        batch = {"x": x, "y": self._y.take(indices, axis=0)}
        return {**batch, "weights": np.ones(len(indices), np.float32)} if self._weighted else batch


def array_dataset(
    train: Pair, validation: Pair, classes: int | None = None, scale: float | None = None, identity: bytes | None = None
) -> Dataset:
    """Make a dataset of arrays that were checked.

    Args:
        train: x, [n, ...], and y, int32[n] or float32[n, outputs].
        validation: likewise; each example has the same shape as in `train`.
        classes: number of classes; None if y holds values.
        scale: factor by which `gather` multiplies x, which becomes float32; None: x is returned as it is.
        identity: bytes to compute the fingerprint from; None: the arrays.
    """
    return Dataset(
        ArrayExamples(*train, scale),
        ArrayExamples(*validation, scale, weighted=True),
        fingerprint=fingerprint(*train, *validation) if identity is None else _digest(identity),
        shape=train[0].shape[1:],
        outputs=train[1].shape[1] if classes is None else classes,
    )


def split(pair: Pair, share: float, where: str) -> tuple[Pair, Pair]:
    """Return (training, validation). A random `share` of the examples, the same at each call, is for validation.

    Raises UserError if there are fewer than two examples.
    """
    x, y = pair
    count = held_out(len(x), share, where)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(x))
    train, validation = order[count:], order[:count]
    return (x[train], y[train]), (x[validation], y[validation])


def held_out(size: int, share: float, where: str) -> int:
    """Return the number of examples held out for validation: `share` of `size`, but at least 1 and at most `size - 1`.

    Raises UserError if there are fewer than two.
    """
    if size < 2:
        raise UserError(f"{where}: {size} example(s): at least one to train on and one for validation are needed")
    return min(max(1, round(size * share)), size - 1)


# --- checks ---------------------------------------------------------------------------------------------------------


def wants_labels(task: str, y: Array) -> bool:
    """Return whether y holds labels for this task. For a user's task, one-dimensional integers are labels."""
    kind = examples_of(task)
    return kind == "labels" or (kind is None and y.ndim == 1 and y.dtype.kind in "iub")


def inputs(x: Array, where: str, numbers: Array | None = None) -> Array:
    """Return x as float32[n, ...]; [n] becomes [n, 1]. Raises UserError for a value that is not finite, with its index.

    Args:
        x: the array, [n, ...].
        where: name of the array in error messages, as in "data.path train.npz: x".
        numbers: numbers of the examples in error messages, int64[n]; by default their indices in the array.
    """
    values = _finite(x, where, numbers)
    return values[:, None] if values.ndim == 1 else values


def values(y: Array, where: str, numbers: Array | None = None) -> Array:
    """Return the targets of a regression, float32[n, outputs], checked like `inputs`. Raises UserError for other shapes."""
    if y.ndim > 2:
        raise UserError(
            f"{where} has shape {y.shape}: a target must be a number or a vector of numbers; reshape it to [examples, n]"
        )
    return inputs(y, where, numbers)


def labels(y: Array, where: str, classes: int | None = None, numbers: Array | None = None) -> Array:
    """Return y as int32[n]. Raises UserError unless each label is a whole number, of any dtype, in 0 to `classes` - 1.

    Without `classes`, labels may be up to `_MAX_CLASSES` - 1.
    """
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        raise UserError(
            f"{where} has shape {y.shape}, but a label is one whole number for each example; "
            "for one-hot vectors save y.argmax(-1), for values to predict take task: regression"
        )
    _check_numeric(y, where)
    y = y.astype(np.float32) if y.dtype == np.float16 else y  # float16 cannot hold the limit
    highest = (_MAX_CLASSES if classes is None else classes) - 1
    with np.errstate(invalid="ignore"):
        wrong = ~((y >= 0) & (y <= highest) & (y == np.floor(y)))
    if wrong.any():
        at = int(wrong.argmax())
        number = at if numbers is None else numbers[at]
        more = ", give data.classes if there are more of them" if classes is None and y[at] > highest else ""
        raise UserError(
            f"{where}[{number}] is {y[at]}: labels must be whole numbers from 0 to {highest}; "
            f"number the classes from 0{more}, or take task: regression for values"
        )
    return y.astype(np.int32)


def check_pair(pair: Pair, names: tuple[str, str], where: str) -> None:
    """Raise UserError unless both arrays have the same number of examples, and at least one."""
    counts = [len(array) if array.ndim else None for array in pair]
    for name, count in zip(names, counts, strict=True):
        if count is None:
            raise UserError(f"{where}: {name} is a single number; its first axis must be the example")
    if counts[0] != counts[1]:
        raise UserError(
            f"{where}: {names[0]} has {counts[0]} examples and {names[1]} has {counts[1]}: "
            "both must have the same examples, in the same order"
        )
    if not counts[0]:
        raise UserError(f"{where}: {names[0]} is empty: there are no examples")


def _check_numeric(array: Array, where: str) -> None:
    if array.dtype.kind not in "biuf":
        kind = "Python objects" if array.dtype.kind == "O" else f"type {array.dtype}"
        raise UserError(f"{where} has {kind}, not numbers; save it as an array of integers or floats")


def _finite(array: Array, where: str, numbers: Array | None) -> Array:
    _check_numeric(array, where)
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(values).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        first = at[0] if numbers is None else int(numbers[at[0]])
        place = ", ".join(str(i) for i in (first, *at[1:]))
        raise UserError(
            f"{where}[{place}] is {array[at]}: it must be a finite number in float32; remove or replace such examples"
        )
    return values


# --- fingerprint ----------------------------------------------------------------------------------------------------


def fingerprint(*arrays: Array) -> bytes:
    """Return a digest of the arrays. Of a large array, only evenly spaced blocks are read."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype};".encode())
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if len(data) <= _FULL_HASH:
            digest.update(data.data)
            continue
        for start in np.linspace(0, len(data) - _BLOCK, _BLOCKS).astype(np.int64):
            digest.update(data[start : start + _BLOCK].data)
    return digest.digest()


def _digest(identity: bytes) -> bytes:
    return hashlib.blake2b(identity, digest_size=16).digest()
