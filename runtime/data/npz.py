"""Read a dataset from a NumPy .npz file."""

from __future__ import annotations

import zipfile
import zlib
from typing import Any

import numpy as np

from ..config import Config
from ..config.data import NpzData
from ..contract import UserError
from .arrays import Array, Pair, array_dataset, check_pair, inputs, labels, split, values, wants_labels
from .base import Dataset

_WHOLE = ("x", "y")
_SPLIT = ("x_train", "y_train", "x_test", "y_test")


def npz_dataset(section: NpzData, config: Config) -> Dataset:
    """Return the dataset: x float32[...], y int32 labels or float32 values. Raises UserError for bad or missing arrays."""
    where = f"data.path {section.path}"
    arrays = _read(section, where)
    is_label = wants_labels(config.task, next(array for name, array in arrays.items() if name.startswith("y")))

    def checked(x: str, y: str) -> Pair:
        check_pair((arrays[x], arrays[y]), (x, y), where)
        name = f"{where}: {y}"
        targets = labels(arrays[y], name, section.classes) if is_label else values(arrays[y], name)
        return inputs(arrays[x], f"{where}: {x}"), targets

    if "x" in arrays:
        train, validation = split(checked("x", "y"), section.validation, where)
    else:
        train, validation = checked("x_train", "y_train"), checked("x_test", "y_test")
        _check_same_shape(train, validation, where)
    highest = max(int(part[1].max()) for part in (train, validation)) if is_label else 0
    return array_dataset(train, validation, (section.classes or highest + 1) if is_label else None)


def _check_same_shape(train: Pair, validation: Pair, where: str) -> None:
    for name, of_train, of_test in zip("xy", train, validation, strict=True):
        if of_train.shape[1:] != of_test.shape[1:]:
            raise UserError(
                f"{where}: an example of {name}_train has shape {of_train.shape[1:]}, one of {name}_test "
                f"{of_test.shape[1:]}: they must be the same"
            )


def _read(section: NpzData, where: str) -> dict[str, Array]:
    """Return the arrays by name: x and y, or all four."""
    try:
        file = np.load(section.path.expanduser(), allow_pickle=False)
    except OSError as error:
        raise UserError(f"{where}: cannot read it: {error.strerror or error}; give a file of numpy.savez") from None
    except (ValueError, EOFError, zipfile.BadZipFile):
        raise UserError(f"{where} is not a complete .npz file; write it again with numpy.savez") from None
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise UserError(f"{where} is a single array; save x and y together with numpy.savez")
    with file:
        names = _SPLIT if set(_SPLIT) <= set(file.files) else _WHOLE
        if not set(names) <= set(file.files):
            raise UserError(
                f"{where} has the arrays {', '.join(sorted(file.files)) or '(none)'}; it must have "
                f"{' and '.join(_WHOLE)}, or {', '.join(_SPLIT)}"
            )
        return {name: _array(file, name, where) for name in names}


def _array(file: Any, name: str, where: str) -> Array:
    try:
        array: Array = file[name]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):
            raise UserError(
                f"{where}: {name} is an array of Python objects, which are not read because they may run code; "
                "save it as an array of numbers, all examples of one shape"
            ) from None
        raise UserError(f"{where}: {name} is damaged ({error}); write the file again with numpy.savez") from None
    if not isinstance(array, np.ndarray):  # numpy returns the bytes of a member that is not .npy
        raise UserError(f"{where}: {name} is not an array; write the file again with numpy.savez")
    return array
