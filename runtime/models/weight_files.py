"""Read arrays from safetensors files: a JSON header with the dtype, shape and offsets of each array, then their bytes.

Files are mapped into memory, so only the parts that are used are read. The format's library is not used: with numpy it reads
no bfloat16, and its errors do not say which file is wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..contract import UserError

ConfigJson = Mapping[str, Any]
"""The contents of a config.json, as `save_pretrained` of transformers writes it; each family of models has other keys."""

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
_MOST_JSON = 100 << 20
"""Bytes of the longest header or other JSON that is read; safetensors has the same limit."""
_AGAIN = "copy or download it again"
_WITHOUT_LINKS = (
    "the cache of the Hub has such links: copy with `cp -rL` or `rsync -L`, or download with `hf download --local-dir`"
)


@dataclass(frozen=True)
class StoredArray:
    """An array in a file."""

    file: Path
    dtype: str
    """The format's name for it."""
    shape: tuple[int, ...]
    offset: int
    """Bytes before it in the file."""
    nbytes: int

    @property
    def is_float(self) -> bool:
        """Return whether podrun reads its dtype."""
        return self.dtype in _DTYPES

    def part(self, block: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Return a block of the array, as a view of the file's bytes."""
        whole = np.memmap(self.file, _DTYPES[self.dtype], "r", self.offset, self.shape)
        return np.asarray(whole)[block]


def stored_arrays(folder: Path) -> dict[str, StoredArray]:
    """Return the arrays in the safetensors files of a folder by name.

    Raises UserError for a file that is missing or damaged, and for arrays whose dtype is not float32, float16 or bfloat16.
    """
    if (folder / INDEX).is_file():
        arrays = _from_index(folder)
    elif (folder / ONE_FILE).is_file():
        arrays = read_header(folder / ONE_FILE)
    elif link := next((folder / name for name in (INDEX, ONE_FILE) if (folder / name).is_symlink()), None):
        raise UserError(f"{link} is a link to {link.readlink()}, which is not there; {_WITHOUT_LINKS}")
    else:
        raise UserError(
            f"{folder} has neither {ONE_FILE} nor {INDEX}; `save_pretrained` of transformers writes them, from older "
            "formats too"
        )
    if wrong := {name: array.dtype for name, array in arrays.items() if array.dtype not in _DTYPES}:
        name, dtype = next(iter(wrong.items()))
        raise UserError(
            f"{arrays[name].file}: {len(wrong)} arrays have a dtype that podrun does not read, {name} has {dtype}; "
            f"weights are {', '.join(_DTYPES)}: take a model that is not quantised"
        )
    return arrays


def _from_index(folder: Path) -> dict[str, StoredArray]:
    index = read_json(folder / INDEX)
    files = index.get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise UserError(f"{folder / INDEX}: weight_map does not map arrays to files; {_AGAIN}")
    headers: dict[str, dict[str, StoredArray]] = {}
    for file in sorted({*files.values()}):
        if Path(file).name != file:
            raise UserError(f"{folder / INDEX}: {file!r} is not the name of a file in this folder")
        if not (folder / file).is_file():
            advice = _WITHOUT_LINKS if (folder / file).is_symlink() else _AGAIN
            raise UserError(f"{folder / INDEX} names {file}, which is not there; {advice}")
        headers[file] = read_header(folder / file)
    for name, file in files.items():
        if name not in headers[file]:
            raise UserError(f"{folder / file} lacks the array {name}, which {INDEX} says it has; {_AGAIN}")
    return {name: array for header in headers.values() for name, array in header.items()}


def read_json(file: Path) -> Mapping[str, Any]:
    """Return the mapping in a JSON file. Raises UserError if it cannot be read."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_JSON + 1)
        if len(text) > _MOST_JSON:
            raise ValueError("it is too long")
        value = json.loads(text)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror} (seen from {Path.cwd()})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not valid JSON: {error}; {_AGAIN}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file} is not a mapping; {_AGAIN}")
    return value


def read_header(file: Path) -> dict[str, StoredArray]:
    """Return the arrays in a safetensors file by name. Raises UserError if the file and its header do not agree."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(0)
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or length > min(size - 8, _MOST_JSON):
                raise UserError(f"{file} is not a safetensors file, or is incomplete: it has {size} bytes; {_AGAIN}")
            header = json.loads(opened.read(length))
        if not isinstance(header, dict):
            raise ValueError("it is not a mapping")
        start = 8 + length
        arrays = {
            name: _array(file, name, given, start, size) for name, given in header.items() if name != "__metadata__"
        }
        _check_order(file, arrays, start, size)
        return arrays
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: its header cannot be read: {error}; {_AGAIN}") from None


def _array(file: Path, name: str, given: Any, start: int, size: int) -> StoredArray:
    """Return an array from its entry in the header. Raises UserError or ValueError unless it lies in the file."""
    try:
        dtype, shape, (first, last) = str(given["dtype"]), tuple(given["shape"]), given["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, first, last)):
            raise ValueError("a number is negative or not an integer")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the entry of {name}: {error}") from None
    if start + last > size:
        raise UserError(
            f"{file} is incomplete: {name} ends at byte {start + last:,}, but the file has {size:,}; {_AGAIN}"
        )
    expected = math.prod(shape) * _DTYPES[dtype].itemsize if dtype in _DTYPES else last - first
    if first > last or last - first != expected:
        raise UserError(
            f"{file}: its header says that {name}, {dtype}{list(shape)}, has the bytes {first} to {last}, "
            f"but it has {expected}; {_AGAIN}"
        )
    return StoredArray(file, dtype, shape, start + first, last - first)


def _check_order(file: Path, arrays: Mapping[str, StoredArray], start: int, size: int) -> None:
    """Raise UserError unless the arrays follow each other from byte `start` on and fill the file, as the format requires."""
    for name, array in sorted(arrays.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if array.offset != start:
            raise UserError(
                f"{file}: its header says that {name} begins at byte {array.offset:,}, but the array before it ends at "
                f"{start:,}; {_AGAIN}"
            )
        start += array.nbytes
    if start != size:
        raise UserError(f"{file} has {size:,} bytes, but its header describes {start:,}; {_AGAIN}")
