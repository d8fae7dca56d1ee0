"""Files of records: Parquet and ArrayRecord."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.runtime.config import check_files
from podrun.runtime.contract import UserError
from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches

from ..array_jobs import Array, everything, job, load

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
array_record = pytest.importorskip("array_record.python.array_record_module")

X = np.arange(36, dtype=np.float32).reshape(12, 3)
Y = np.arange(12) % 4


# --- Parquet --------------------------------------------------------------------------------------------------------


def write_rows(path: Path, **columns: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


def by_first_input(batch: dict[str, Array]) -> dict[str, Array]:
    order = batch["x"].reshape(len(batch["x"]), -1)[:, 0].argsort()
    return {key: value[order] for key, value in batch.items()}


def rows_of(dataset: Any) -> dict[str, Array]:
    """All rows of both sets, as they were in the files."""
    parts = everything(dataset.train), everything(dataset.validation)
    return by_first_input({key: np.concatenate([part[key] for part in parts]) for key in ("x", "y")})


@pytest.mark.parametrize(
    "x",
    [
        pyarrow.array(X.tolist()),
        pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(X.ravel()), 3),
        pyarrow.array(X.tolist(), pyarrow.large_list(pyarrow.float64())),
    ],
    ids=["list", "fixed", "large"],
)
def test_lists_are_vectors(tmp_path: Path, x: Any) -> None:
    """A row is an example; the files are read in the order of their names."""
    for part in (slice(0, 5), slice(5, 12)):
        write_rows(tmp_path / f"part-{part.start}.parquet", x=x[part], y=Y[part])
    (tmp_path / "_SUCCESS").touch()
    dataset = load("classification", "parquet", tmp_path, validation=0.25)
    assert (dataset.shape, dataset.outputs, dataset.validation.size) == ((3,), 4, 3)
    np.testing.assert_array_equal(rows_of(dataset)["x"], X)
    np.testing.assert_array_equal(rows_of(dataset)["y"], Y)


def test_lists_of_lists_are_images(tmp_path: Path) -> None:
    """The folder is read as deep as its subfolders go."""
    path = write_rows(tmp_path / "a.parquet", image=X.reshape(12, 3, 1).tolist(), y=Y)
    dataset = load("classification", "parquet", path, x="image")
    assert dataset.shape == (3, 1)
    np.testing.assert_array_equal(rows_of(dataset)["x"], X[..., None])


def test_columns_of_numbers(tmp_path: Path) -> None:
    """Several are the inputs together, one alone has an axis of its own."""
    path = write_rows(tmp_path / "a.parquet", a=X[:, 0], b=Y, c=X[:, 2])
    dataset = load("regression", "parquet", path, x=["a", "b"], y="c")
    np.testing.assert_array_equal(rows_of(dataset)["x"], np.stack([X[:, 0], Y], axis=1))
    np.testing.assert_array_equal(rows_of(dataset)["y"], X[:, 2:])
    assert load("regression", "parquet", path, x="a", y="c").shape == (1,)


LISTS = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("columns", "keys", "message"),
    [
        ({"a": [1.0, 2.0], "y": [0, 1]}, {}, "has no column x; it has a, y"),
        ({"x": ["a", "b"], "y": [0, 1]}, {}, "column x has type string, not numbers"),
        ({"x": [1.0, None], "y": [0, 1]}, {}, r"column x has 1 empty value"),
        ({"x": [[1.0, None], [1.0, 2.0]], "y": [0, 1]}, {}, "column x has 1 empty value"),
        ({"x": [[1.0, 2.0], [3.0]], "y": [0, 1]}, {}, r"column x has lists of different lengths, first of 2, .* of 1"),
        ({"x": [1.0, float("nan")], "y": [0, 1]}, {}, r"column x\[1\] is nan"),
        ({"x": LISTS, "y": [0, -3]}, {}, r"column y\[1\] is -3"),
        ({"x": LISTS, "y": [0, 1]}, {"x": ["x", "y"]}, "column x has lists; give it alone"),
        ({"x": [1.0], "y": [0]}, {}, "1 example"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, columns: Any, keys: Any, message: str) -> None:
    """The message says which column, and where in it."""
    write_rows(tmp_path / "a.parquet", **columns)
    with pytest.raises(UserError, match=rf"^data\.path.*a\.parquet:? {message}"):
        load("classification", "parquet", tmp_path / "a.parquet", **keys)


def test_what_is_not_parquet(tmp_path: Path) -> None:
    """Another file, a truncated one, or files whose columns differ."""
    path = write_rows(tmp_path / "a.parquet", x=X[:, 0], y=Y)
    write_rows(tmp_path / "b.parquet", x=X[:, 0].astype(int), y=Y)
    with pytest.raises(UserError, match="the files differ in the types of their columns"):
        load("classification", "parquet", tmp_path)
    for data in (b"x,y\n1,2\n", path.read_bytes()[:-20]):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"a\.parquet is not a Parquet file that can be read"):
            load("classification", "parquet", path)


# --- ArrayRecord ----------------------------------------------------------------------------------------------------


def archive(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def write_records(path: Path, records: Sequence[bytes]) -> Path:
    writer = array_record.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for record in records:
        writer.write(record)
    writer.close()
    return path


RECORDS = [archive(x=x, y=y) for x, y in zip(X, Y, strict=True)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve records in two files."""
    write_records(tmp_path / "a-0.array_record", RECORDS[:5])
    write_records(tmp_path / "a-1.array_record", RECORDS[5:])
    return tmp_path


def test_records_are_gathered_in_any_order(folder: Path) -> None:
    """Across files, and more than once; the end of the records is the validation set."""
    dataset = load("classification", "array_record", f"{folder}/a-*", validation=0.25)
    assert (dataset.shape, dataset.outputs) == ((3,), 4)
    assert (dataset.train.size, dataset.validation.size) == (9, 3)
    indices = np.array([8, 0, 5, 4, 0])
    batch = dataset.train.gather(indices, np.zeros(5, np.int64))
    assert {key: value.dtype for key, value in batch.items()} == {"x": np.float32, "y": np.int32}
    np.testing.assert_array_equal(batch["x"], X[indices])
    np.testing.assert_array_equal(batch["y"], Y[indices])
    held = everything(dataset.validation)
    np.testing.assert_array_equal(held["x"], X[9:])
    assert held["weights"].tolist() == [1, 1, 1]


def test_processes_read_their_parts(folder: Path) -> None:
    """Two processes together read what one alone reads, at any position: so a run may go on with another number."""
    dataset = load("classification", "array_record", folder)
    whole = TrainBatches(dataset.train, ShuffledOrder(dataset.train.size, 3), 4, 0, 1)
    parts = [TrainBatches(dataset.train, ShuffledOrder(dataset.train.size, 3), 4, process, 2) for process in range(2)]
    for position in (40, 0, 8):
        together = np.concatenate([part.at(position)["x"] for part in parts])
        np.testing.assert_array_equal(together, whole.at(position)["x"])


def test_classes_are_given_or_found(folder: Path) -> None:
    """The highest label may be in any record."""
    write_records(folder / "a-2.array_record", [archive(x=X[0], y=6), archive(x=X[0], y=0)])
    assert load("classification", "array_record", folder).outputs == 7
    assert load("classification", "array_record", folder, classes=9).outputs == 9
    dataset = load("classification", "array_record", folder, classes=4, validation=0.1)
    with pytest.raises(UserError, match=r"y\[12\] is 6: labels must be whole numbers from 0 to 3"):
        everything(dataset.train)


def test_values(folder: Path) -> None:
    """For a regression targets are float32 vectors."""
    dataset = load("regression", "array_record", folder, x="y", y="x")
    batch = everything(dataset.train)
    np.testing.assert_array_equal(batch["x"], Y[: dataset.train.size, None])
    np.testing.assert_array_equal(batch["y"], X[: dataset.train.size])
    assert (dataset.shape, dataset.outputs) == ((1,), 3)


def test_the_fingerprint_is_of_all_files(folder: Path) -> None:
    """It is equal each time; one changed record makes another one, and so does another use of the same records."""
    known = load("classification", "array_record", folder).fingerprint
    assert load("classification", "array_record", folder).fingerprint == known
    assert load("classification", "array_record", folder, validation=0.5).fingerprint != known
    assert load("regression", "array_record", folder, x="y", y="x").fingerprint != known
    write_records(folder / "a-1.array_record", [*RECORDS[5:11], archive(x=X[0], y=0)])
    assert load("classification", "array_record", folder).fingerprint != known


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (archive(x=X[0, :2], y=0), r"x of record 12 has shape \(2,\), of record 0 \(3,\)"),
        (archive(x=X[0]), r"record 12 has the arrays x, not x and y"),
        (b"no archive", r"record 12 is not an \.npz archive of numbers"),
        (archive(x=X[0], y=np.array([None])), r"record 12 is not an \.npz archive of numbers"),
        (archive(x=X[0] * np.nan, y=0), r"x\[12, 0\] is nan"),
        (archive(x=X[0], y=-1), r"y\[12\] is -1"),
        (archive(x=X[0], y=0.5), r"y\[12\] is 0.5"),
    ],
)
def test_a_record_that_does_not_fit(folder: Path, record: bytes, message: str) -> None:
    """The message says which record."""
    write_records(folder / "a-2.array_record", [record])
    with pytest.raises(UserError, match=rf"^data\.path .*: {message}"):
        load("classification", "array_record", folder)


def test_what_is_not_array_record(folder: Path) -> None:
    """Another file, one without records, a damaged one."""
    path = folder / "a-1.array_record"
    good = path.read_bytes()
    path.write_text("hello")
    with pytest.raises(UserError, match="cannot read it as ArrayRecord"):
        load("classification", "array_record", folder)
    with pytest.raises(UserError, match="0 example"):
        load("classification", "array_record", write_records(folder / "empty", []))
    at = good.find(RECORDS[6][:50])
    path.write_bytes(good[:at] + bytes(100) + good[at + 100 :])
    with pytest.raises(UserError, match="cannot read its records: Corrupted"):
        load("classification", "array_record", folder)


# --- both -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["parquet", "array_record"])
def test_no_file(tmp_path: Path, name: str) -> None:
    """It is said before a host is touched: nothing there, nothing that counts, or nothing in it."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "_SUCCESS").touch()
    (tmp_path / "nothing.parquet").touch()
    for path, message in (
        ("none-*", "no file, folder or match for"),
        ("empty", "no file, folder or match for"),
        ("hidden", "no record files in"),
        ("nothing.parquet", "is empty"),
    ):
        with pytest.raises(UserError, match=rf"^data\.path: .*{message}"):
            check_files(job("classification", {"name": name, "path": f"{tmp_path}/{path}"}))
        with pytest.raises(UserError, match=message):
            load("classification", name, tmp_path / path)


@pytest.mark.parametrize(("name", "library"), [("parquet", "pyarrow"), ("array_record", "grain")])
def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, library: str) -> None:
    """The message says what to install."""
    (tmp_path / "file").write_text("something")
    monkeypatch.setitem(sys.modules, library, None)  # Python's own way to make an import fail
    with pytest.raises(UserError, match=rf"^data\.name {name} needs .*pip install [a-z -]+$"):
        load("classification", name, tmp_path / "file")
