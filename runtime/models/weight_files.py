"""Read arrays from safetensors files: a JSON header with the dtype, shape and offsets of each array, then their bytes.

Only the parts that are used are read: files of a folder are mapped into memory, and `storage.bucket_model` reads those of a
bucket.
The format's library is not used: with numpy it reads no bfloat16, and its errors do not say which file is wrong.
"""

from __future__ import annotations

import errno
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..contract import UserError
from ..plugins import hook

ConfigJson = Mapping[str, Any]
"""The contents of a config.json, as `save_pretrained` of transformers writes it; each family of models has other keys."""

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
_MOST_JSON = 100 << 20
_LONGEST_NAME = 255  # bytes, of a file
"""Bytes of the longest header or other JSON that is read; safetensors has the same limit."""
_AGAIN = "copy or download it again"
_WITHOUT_LINKS = (
    "the cache of the Hub has such links: copy with `cp -rL` or `rsync -L`, or download with `hf download --local-dir`"
)


class ModelFile(ABC):
    """A file of a published model. Its text is where it is, for messages."""

    is_remote = False
    """True if reading costs requests over a network, so that no part is read twice on a pod."""

    @abstractmethod
    def size(self) -> int | None:
        """Return its bytes; None if it does not exist."""

    @abstractmethod
    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, exclusive, fewer at the end of the file. Raises OSError, UserError."""

    @abstractmethod
    def block(
        self, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], block: tuple[slice, ...]
    ) -> np.ndarray[Any, Any]:
        """Return a block of the array that begins at byte `offset`."""

    @hook
    def advice(self) -> str:
        """Return what to do if it is missing or damaged."""
        return _AGAIN


class ModelFolder(ABC):
    """The folder of a published model. Its text is where it is, for messages."""

    @abstractmethod
    def file(self, name: str) -> ModelFile:
        """Return the file of a name, which need not exist."""

    @hook
    def check_unchanged(self) -> None:
        """Raise UserError if a file was replaced since it was opened, so that parts of two models were read."""
        return


@dataclass(frozen=True)
class LocalFile(ModelFile):
    """A file of this host."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def size(self) -> int | None:
        return self.path.stat().st_size if self.path.is_file() else None

    def read(self, start: int, end: int) -> bytes:
        with self.path.open("rb") as opened:
            opened.seek(start)
            return opened.read(end - start)

    def block(
        self, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], block: tuple[slice, ...]
    ) -> np.ndarray[Any, Any]:
        """Return a view of the file's bytes."""
        return np.asarray(np.memmap(self.path, dtype, "r", offset, shape))[block]

    def advice(self) -> str:
        return _WITHOUT_LINKS if self.path.is_symlink() and not self.path.exists() else _AGAIN


@dataclass(frozen=True)
class LocalFolder(ModelFolder):
    """A folder of this host."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> LocalFile:
        return LocalFile(self.path / name)


@dataclass(frozen=True)
class StoredArray:
    """An array in a file."""

    file: ModelFile
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
        """Return a block of the array."""
        return self.file.block(_DTYPES[self.dtype], self.offset, self.shape, block)


def stored_arrays(given: Path | ModelFolder) -> dict[str, StoredArray]:
    """Return the arrays in the safetensors files of a folder by name.

    Raises UserError for a file that is missing or damaged, and for arrays whose dtype is not float32, float16 or bfloat16.
    """
    folder = LocalFolder(given) if isinstance(given, Path) else given
    index, whole = folder.file(INDEX), folder.file(ONE_FILE)
    if (
        whole.size() is not None
    ):  # also beside an index, of files that an earlier save left behind: as transformers does
        arrays = read_header(whole)
    elif index.size() is not None:
        arrays = _from_index(folder)
    elif link := next((file for file in (index, whole) if file.advice() == _WITHOUT_LINKS), None):
        raise UserError(f"{link} is a link to {Path(str(link)).readlink()}, which is not there; {_WITHOUT_LINKS}")
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


def _from_index(folder: ModelFolder) -> dict[str, StoredArray]:
    where = folder.file(INDEX)
    index = read_json(where)
    files = index.get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise UserError(f"{where}: weight_map does not map arrays to files; {_AGAIN}")
    headers: dict[str, dict[str, StoredArray]] = {}
    for file in sorted({*files.values()}):
        if Path(file).name != file or len(file.encode(errors="replace")) > _LONGEST_NAME:
            raise UserError(f"{where}: {file[:200]!r} is not the name of a file in this folder")
        shard = folder.file(file)
        if shard.size() is None:
            raise UserError(f"{where} names {file}, which is not there; {shard.advice()}")
        headers[file] = read_header(shard)
    for name, file in files.items():
        if name not in headers[file]:
            raise UserError(f"{folder.file(file)} lacks the array {name}, which {INDEX} says it has; {_AGAIN}")
    for file, header in headers.items():
        if twice := next((name for name in header if files.get(name, file) != file), None):
            raise UserError(
                f"{folder.file(file)} has the array {twice}, which {INDEX} says is in {files[twice]}: are these files of two "
                f"models? {_AGAIN}"
            )
    return {name: array for header in headers.values() for name, array in header.items()}


def read_json(given: Path | ModelFile) -> Mapping[str, Any]:
    """Return the mapping in a JSON file. Raises UserError if it cannot be read."""
    file = LocalFile(given) if isinstance(given, Path) else given
    try:
        text = file.read(0, _MOST_JSON + 1)
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


def read_header(given: Path | ModelFile) -> dict[str, StoredArray]:
    """Return the arrays in a safetensors file by name. Raises UserError if the file and its header do not agree."""
    file = LocalFile(given) if isinstance(given, Path) else given
    try:
        size = file.size()
        if size is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        length = int.from_bytes(file.read(0, 8), "little")
        if size < 8 or length > min(size - 8, _MOST_JSON):
            raise UserError(f"{file} is not a safetensors file, or is incomplete: it has {size} bytes; {_AGAIN}")
        header = json.loads(file.read(8, 8 + length))
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


def _array(file: ModelFile, name: str, given: Any, start: int, size: int) -> StoredArray:
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


def _check_order(file: ModelFile, arrays: Mapping[str, StoredArray], start: int, size: int) -> None:
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
