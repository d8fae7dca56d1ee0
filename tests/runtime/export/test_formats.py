"""Files of named arrays, read back by safetensors and numpy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.export.formats import FORMATS

ARRAYS: dict[str, Any] = {
    "scalar": np.array(1.5, np.float32),
    "layers.0.kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "none": np.empty((0, 3), np.float32),
    "half": np.arange(3, dtype=np.float16),
    "brain": np.array([1.0, 3.140625, float("inf")], ml_dtypes.bfloat16),
    "ids": np.arange(5, dtype=np.uint32),
    "big": np.arange(3, dtype=">i4"),
    "flags": np.array([True, False]),
    "ünïcode": np.arange(2, dtype=np.int64),
}
METADATA = {"step": "3", "config": '{"a": "ä"}'}


def write(form: str, file: Path, arrays: dict[str, Any]) -> None:
    described = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    FORMATS[form](file, described, lambda name: arrays[name], METADATA)


def test_safetensors(tmp_path: Path) -> None:
    """Every array keeps its type, and begins where it can be mapped into memory."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("safetensors", reason="the test extra is not installed")
    from safetensors import safe_open
    from safetensors.numpy import load_file

    file = tmp_path / "model.safetensors"
    write("safetensors", file, {"eight": np.array([1.0, 0.5], ml_dtypes.float8_e4m3fn)})
    with safe_open(file, "np") as opened:  # numpy's side of the library cannot make such an array
        assert opened.get_slice("eight").get_dtype() == "F8_E4M3"
    file.unlink()
    write("safetensors", file, ARRAYS)
    read = load_file(file)
    assert read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(read[name].astype(np.float64), array.astype(np.float64), name)
        assert read[name].shape == array.shape
        assert read[name].dtype == array.dtype.newbyteorder("=")
    with safe_open(file, "np") as opened:
        assert opened.metadata() == METADATA
    assert int.from_bytes(file.read_bytes()[:8], "little") % 8 == 0


def test_npz(tmp_path: Path) -> None:
    """Types that numpy's files lack become float32; nothing is pickled, and the same model gives the same file."""
    arrays = {**ARRAYS, "eight": np.array([1.0, 0.5], ml_dtypes.float8_e4m3fn)}
    for name in ("one", "two"):
        write("npz", tmp_path / name, arrays)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    read = np.load(tmp_path / "one", allow_pickle=False)
    assert json.loads(bytes(read["__metadata__"])) == METADATA
    assert set(read.files) == {*arrays, "__metadata__"}
    for name, array in arrays.items():
        as_read = np.float32 if name in ("brain", "eight") else array.dtype
        np.testing.assert_array_equal(read[name], array.astype(as_read), name, strict=True)


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a//b", "two\nlines", "half\ud800"])
def test_a_name_that_leads_out_of_an_archive(name: str, tmp_path: Path) -> None:
    """Whoever unpacks an npz file finds all of it in one folder. Names with a slash, such as Haiku's, stay."""
    write("npz", tmp_path / "haiku.npz", {"linear/w": np.zeros(2)})
    assert set(np.load(tmp_path / "haiku.npz").files) == {"linear/w", "__metadata__"}
    with pytest.raises(UserError, match=r"an array of the model names a file .*; try --format safetensors"):
        write("npz", tmp_path / "model.npz", {"w": np.zeros(2), name: np.zeros(2)})
    assert not (tmp_path / "model.npz").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_an_array_with_the_name_of_the_metadata(form: str, tmp_path: Path) -> None:
    """It would replace the metadata, or be lost behind it."""
    with pytest.raises(UserError, match="an array of the model is named __metadata__"):
        write(form, tmp_path / "model", {"__metadata__": np.zeros(3, np.float32)})
    assert not (tmp_path / "model").exists()


def test_a_type_that_safetensors_lacks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="wide has the dtype complex128, which safetensors lacks"):
        write("safetensors", tmp_path / "model", {"wide": np.zeros(2, np.complex128)})
    write("npz", tmp_path / "model.npz", {"wide": np.zeros(2, np.complex128)})
