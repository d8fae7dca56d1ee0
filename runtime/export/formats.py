"""Files of named arrays for other programs, written one array after another: no more than one of them is in memory.

safetensors: a header of JSON with the type, shape and place of each array, then their bytes
(https://huggingface.co/docs/safetensors). It is written here, because the library takes all arrays at once. npz: a zip of
numpy's own files.
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
"""Shape and type of each array by name."""
Read = Callable[[str], np.ndarray[Any, Any]]
"""Reads the array of a name."""
Writer = Callable[[Path, Described, Read, Mapping[str, str]], None]
"""Writes a new file. Raises OSError, and what reading raises."""

METADATA = "__metadata__"
"""Entry with the metadata, in the header of safetensors, and as JSON in an array of bytes of an npz."""
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
_ALIGNMENT = 8  # bytes; arrays can then be mapped into memory


def write_safetensors(file: Path, arrays: Described, read: Read, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, in which each array keeps its type. Raises UserError for a type that the format lacks."""
    header: dict[str, Any] = {METADATA: dict(metadata)}
    offset = 0
    for name, (shape, dtype) in arrays.items():
        if dtype.name not in _SAFETENSORS:
            raise UserError(f"{name} has the type {dtype.name}, for which safetensors has none; try --format npz")
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
    """Write an npz file. bfloat16 and float8, which numpy's format lacks, become float32, which holds their values.

    Raises UserError for arrays whose names cannot be files of one folder, which the archive may be unpacked to.
    """
    if refused := as_files(f"{name}.npy" for name in arrays)[1]:
        raise UserError(f"an npz file is an archive, and an array of the model {refused[0]}; try --format safetensors")
    with zipfile.ZipFile(file, "x", zipfile.ZIP_STORED, allowZip64=True) as out:
        _add(out, METADATA, np.frombuffer(json.dumps(dict(metadata)).encode(), np.uint8))
        for name in arrays:
            array = read(name)
            _add(out, name, array.astype(np.float32) if array.dtype.kind == "V" else array)


def _add(out: zipfile.ZipFile, name: str, array: np.ndarray[Any, Any]) -> None:
    entry = zipfile.ZipInfo(f"{name}.npy")  # of 1980, so that the same model gives the same file
    with out.open(entry, "w", force_zip64=True) as part:
        np.lib.format.write_array(part, np.asanyarray(array), allow_pickle=False)


FORMATS: dict[str, Writer] = {"safetensors": write_safetensors, "npz": write_npz}
