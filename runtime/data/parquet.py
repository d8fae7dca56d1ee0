"""Read a dataset from the rows of Parquet files.

grain reads Parquet only sequentially, but training needs examples by index, so pyarrow reads the columns into memory once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..config import Config
from ..config.data import ParquetData
from ..config.files import record_files
from ..contract import UserError
from .arrays import Array, array_dataset, check_pair, inputs, labels, split, values, wants_labels
from .base import Dataset


def parquet_dataset(section: ParquetData, config: Config) -> Dataset:
    """Return the dataset: x float32[...], y int32 labels or float32 values. Raises UserError for bad files or columns."""
    where = f"data.path {section.path}"
    x_names = (section.x,) if isinstance(section.x, str) else section.x
    table = _read(record_files(section.path), [*x_names, section.y])
    columns = {name: _column(table.column(name), f"{where}: column {name}") for name in (*x_names, section.y)}
    x, y = _inputs(columns, section, where), columns[section.y]
    check_pair((x, y), (str(section.x), section.y), where)
    name = f"{where}: column {section.y}"
    if not wants_labels(config.task, y):
        return array_dataset(*split((x, values(y, name)), section.validation, where))
    whole = x, labels(y, name, section.classes)
    return array_dataset(*split(whole, section.validation, where), section.classes or int(whole[1].max()) + 1)


def _inputs(columns: dict[str, Array], section: ParquetData, where: str) -> Array:
    if isinstance(section.x, str):
        return inputs(columns[section.x], f"{where}: column {section.x}")
    for name in section.x:
        if columns[name].ndim != 1:
            raise UserError(f"{where}: column {name} has lists; give it alone as data.x, or columns of single numbers")
    return np.concatenate([inputs(columns[name], f"{where}: column {name}") for name in section.x], axis=1)


def _read(files: list[Path], names: list[str]) -> Any:
    """Return the columns `names` of all files, concatenated, as a pyarrow.Table."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("data.name parquet needs pyarrow: pip install pyarrow") from None
    tables = []
    for path in files:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                columns = file.schema_arrow.names
                missing = [name for name in names if name not in columns]
                if missing:
                    raise UserError(
                        f"data.path: {path} has no column {missing[0]}; it has {', '.join(columns)}: "
                        "name them with data.x and data.y"
                    )
                tables.append(file.read(columns=list(dict.fromkeys(names))))
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"data.path: {path} is not a Parquet file that can be read: {error}") from None
    try:
        return pyarrow.concat_tables(tables)
    except pyarrow.ArrowException as error:
        raise UserError(f"data.path: the files differ in the types of their columns: {error}") from None


def _column(column: Any, where: str) -> Array:
    """Return a column as an array [rows, ...]. Lists, which must have equal lengths, become further axes."""
    chunk = column.combine_chunks()
    _check_no_nulls(chunk, where)
    shape = [len(chunk)]
    while hasattr(chunk, "flatten") and hasattr(chunk.type, "value_type"):
        if hasattr(chunk, "offsets"):
            _check_lengths(np.diff(chunk.offsets.to_numpy()), where)
        flat = chunk.flatten()
        _check_no_nulls(flat, where)
        shape.append(len(flat) // max(1, len(chunk)))
        chunk = flat
    array: Array = chunk.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{where} has type {column.type}, not numbers; name other columns with data.x and data.y")
    return array.reshape(shape)


def _check_no_nulls(chunk: Any, where: str) -> None:
    if chunk.null_count:
        raise UserError(f"{where} has {chunk.null_count} empty value(s) (null); remove or fill these rows")


def _check_lengths(lengths: Array, where: str) -> None:
    wrong = lengths != lengths[:1]
    if wrong.any():
        at = int(wrong.argmax())
        raise UserError(
            f"{where} has lists of different lengths, first of {lengths[0]}, then (number {at}) of {lengths[at]}; "
            "all examples must have the same shape"
        )
