"""Write files of named arrays, one array at a time, so that only one is in memory.

safetensors: a JSON header with the dtype, shape and offsets of each array, then their bytes
(https://huggingface.co/docs/safetensors). Its library is not used, because it needs all arrays in memory. npz: a zip of .npy
files.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..contract import UserError
from ..safe_name import as_files

Described = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and dtype of each array by name."""
Read = Callable[[str], np.ndarray[Any, Any]]
"""Reads an array by name."""
Writer = Callable[[Path, Described, Read, Mapping[str, str]], None]
"""Writes a new file of the arrays and the metadata. Raises OSError, and the errors of `Read`."""

METADATA = "__metadata__"
"""Name of the entry with the metadata: in the header of safetensors; in an npz, an array of bytes of JSON."""
_SAFETENSORS = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
_ALIGNMENT = 8  # bytes, so that arrays can be memory-mapped


def write_safetensors(file: Path, arrays: Described, read: Read, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file; arrays keep their dtypes. Raises UserError for a dtype that the format lacks."""
    _check_names(arrays)
    header: dict[str, Any] = {METADATA: dict(metadata)}
    offset = 0
    for name, (shape, dtype) in arrays.items():
        if dtype.name not in _SAFETENSORS:
            raise UserError(f"{name} has the dtype {dtype.name}, which safetensors lacks; try --format npz")
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _SAFETENSORS[dtype.name], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with file.open("xb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in arrays:
            array = read(name)
            little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
            out.write(little.reshape(-1).view(np.uint8).data)


def write_npz(file: Path, arrays: Described, read: Read, metadata: Mapping[str, str]) -> None:
    """Write an npz file. bfloat16 and float8, which numpy's format lacks, become float32, without loss.

    Raises UserError if the names of the arrays cannot be files of one folder, into which the archive may be unpacked.
    """
    _check_names(arrays)
    if refused := as_files(f"{name}.npy" for name in arrays)[1]:
        raise UserError(f"an npz file is an archive, and an array of the model {refused[0]}; try --format safetensors")
    with zipfile.ZipFile(file, "x", zipfile.ZIP_STORED, allowZip64=True) as out:
        _add(out, METADATA, np.frombuffer(json.dumps(dict(metadata)).encode(), np.uint8))
        for name in arrays:
            array = read(name)
            _add(out, name, array.astype(np.float32) if array.dtype.kind == "V" else array)


def _check_names(arrays: Described) -> None:
    """Raise UserError if an array has the name under which safetensors and npz files store metadata."""
    if METADATA in arrays:
        raise UserError(f"an array of the model is named {METADATA}, as the metadata of exported files is; rename it")


def _add(out: zipfile.ZipFile, name: str, array: np.ndarray[Any, Any]) -> None:
    entry = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, so that the same model gives the same file
    with out.open(entry, "w", force_zip64=True) as part:
        np.lib.format.write_array(part, np.asanyarray(array), allow_pickle=False)


FORMATS: dict[str, Writer] = {"safetensors": write_safetensors, "npz": write_npz}
