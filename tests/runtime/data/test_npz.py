"""Arrays from .npz files."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.runtime.config import check_files
from podrun.runtime.contract import UserError

from ..array_jobs import Array, everything, job, load


def save(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


X = np.arange(20, dtype=np.float64).reshape(10, 2)
Y = np.arange(10) % 3


def test_one_set_is_split(tmp_path: Path) -> None:
    """x and y of the same examples stay together; the classes follow from the highest label."""
    dataset = load("classification", "npz", save(tmp_path, x=X, y=Y), validation=0.3)
    assert (dataset.shape, dataset.outputs, dataset.train.size, dataset.validation.size) == ((2,), 3, 7, 3)
    for batch in (everything(dataset.train), everything(dataset.validation)):
        assert batch["x"].dtype == np.float32
        np.testing.assert_array_equal(batch["y"], batch["x"][:, 0] / 2 % 3)


def test_two_sets(tmp_path: Path) -> None:
    """x_test and y_test are the validation set, and their labels count."""
    path = save(tmp_path, x_train=X, y_train=Y, x_test=X[:4], y_test=Y[:4] + 2)
    dataset = load("classification", "npz", path)
    np.testing.assert_array_equal(everything(dataset.train)["x"], X)
    np.testing.assert_array_equal(everything(dataset.validation)["y"], Y[:4] + 2)
    assert dataset.outputs == 5
    assert load("classification", "npz", path, classes=9).outputs == 9


def test_targets_by_task(tmp_path: Path) -> None:
    """Whole numbers are labels for a classification and values for a regression."""
    path = save(tmp_path, x=X, y=Y)
    assert everything(load("classification", "npz", path).train)["y"].dtype == np.int32
    dataset = load("regression", "npz", path)
    assert (everything(dataset.train)["y"].dtype, dataset.outputs) == (np.float32, 1)
    assert load("regression", "npz", save(tmp_path, x=X, y=X)).outputs == 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": X, "y": Y}, r"has the arrays inputs, y; it must have x and y, or x_train"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "has the arrays x_test, x_train, y_train; it must have"),
        ({}, r"has the arrays \(none\)"),
        ({"x": X, "y": Y[:9]}, "x has 10 examples and y has 9"),
        ({"x": X[:0], "y": Y[:0]}, "x is empty"),
        ({"x": X[:1], "y": Y[:1]}, "1 example"),
        ({"x": np.float32(1), "y": Y}, "x is a single number"),
        ({"x": X.astype(object), "y": Y}, "x is an array of Python objects, which are not read"),
        ({"x": X, "y": Y - 1}, r"y\[0\] is -1"),
        ({"x": X, "y": Y + 0.5}, r"y\[0\] is 0.5"),
        ({"x": np.where(X == 7, np.nan, X), "y": Y}, r"x\[3, 1\] is nan"),
        ({"x": X.astype(str), "y": Y}, "x has type <U32, not numbers"),
        (
            {"x_train": X, "y_train": Y, "x_test": X[:, :1], "y_test": Y},
            r"an example of x_train has shape \(2,\), one of x_test \(1,\)",
        ),
        ({"x_train": X, "y_train": Y, "x_test": X, "y_test": Y - 2}, r"y_test\[0\] is -2"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, Array], message: str) -> None:
    """The message says which array, and where in it."""
    with pytest.raises(UserError, match=rf"^data\.path .*data\.npz:? {message}"):
        load("classification", "npz", save(tmp_path, **arrays))


def test_a_label_beyond_the_classes(tmp_path: Path) -> None:
    """Then `classes` is wrong, or the label."""
    with pytest.raises(UserError, match=r"y\[2\] is 2: labels must be whole numbers from 0 to 1"):
        load("classification", "npz", save(tmp_path, x=X, y=Y), classes=2)


@pytest.mark.parametrize("kept", [-100, 400, 100, 10])
def test_a_truncated_file(tmp_path: Path, kept: int) -> None:
    """It is not a complete .npz file."""
    path = save(tmp_path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"data\.npz is not a complete \.npz file"):
        load("classification", "npz", path)


def test_a_damaged_array(tmp_path: Path) -> None:
    """The file's checksums tell, and the array is named."""
    path = save(tmp_path, x=X, y=Y)
    data = bytearray(path.read_bytes())
    data[data.find(X.tobytes()) + 5] ^= 255
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"data\.npz: x is damaged \(Bad CRC-32"):
        load("classification", "npz", path)


def test_other_files(tmp_path: Path) -> None:
    """A single array, or something else altogether."""
    np.save(tmp_path / "single.npy", X)
    with pytest.raises(UserError, match="is a single array"):
        load("classification", "npz", tmp_path / "single.npy")
    (tmp_path / "text").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"is not a complete \.npz file"):
        load("classification", "npz", tmp_path / "text")
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, "no array")
    with pytest.raises(UserError, match=r"zip\.npz: x is not an array"):
        load("classification", "npz", tmp_path / "zip.npz")


def test_a_missing_file(tmp_path: Path) -> None:
    """It is said before a host is touched, and on the host."""
    path = str(tmp_path / "none.npz")
    with pytest.raises(UserError, match=r"^data\.path: cannot read .*none\.npz: No such file"):
        check_files(job("classification", {"name": "npz", "path": path}))
    with pytest.raises(UserError, match=r"^data\.path .*none\.npz: cannot read it: No such file"):
        load("classification", "npz", path)
