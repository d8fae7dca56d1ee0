"""Read ArrayRecord files through grain's random-access source, a whole batch at a time.

Write them with `group_size:1`, so that a record can be read without its neighbours.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..config import Config
from ..config.data import ArrayRecordData
from ..config.files import record_files
from ..contract import UserError
from .arrays import Array, Pair, held_out, inputs, labels, values, wants_labels
from .base import Batch, Dataset

_END = 1 << 16  # bytes at each end of a file that are hashed
_SCAN = 1024  # records read at a time to find the highest label


class RecordFiles:
    """The records of all files, numbered consecutively from 0. Thread-safe."""

    def __init__(self, section: ArrayRecordData, task: str, files: list[Path]) -> None:
        self._names = (section.x, section.y)
        self._where = f"data.path {section.path}"
        self._source = _open(files, self._where)
        self.size = len(self._source)
        held_out(self.size, section.validation, self._where)
        first = self._decode(0, self._records(np.zeros(1, np.int64))[0])
        self._shapes = tuple(array.shape for array in first)
        self._labels = wants_labels(task, first[1][None])
        self._classes = section.classes
        x, y = self.read(np.zeros(1, np.int64))
        self.shape = x.shape[1:]
        if self._labels and self._classes is None:
            self._classes = 1 + self._highest_label()
        self.outputs = self._classes if self._classes is not None and self._labels else y.shape[1]

    def read(self, numbers: Array) -> Pair:
        """Return (x, y) of the records `numbers`, int64[B]: float32[B, ...] and int32[B] or float32[B, outputs].

        Raises UserError for a damaged record, or one whose shapes differ from those of record 0.
        """
        pairs = []
        for number, record in zip(numbers.tolist(), self._records(numbers), strict=True):
            pair = self._decode(number, record)
            for name, array, shape in zip(self._names, pair, self._shapes, strict=True):
                if array.shape != shape:
                    raise UserError(
                        f"{self._where}: {name} of record {number} has shape {array.shape}, of record 0 {shape}: "
                        "all examples must have the same shape"
                    )
            pairs.append(pair)
        x, y = (np.stack(arrays) for arrays in zip(*pairs, strict=True))
        x_name, y_name = (f"{self._where}: {name}" for name in self._names)
        targets = labels(y, y_name, self._classes, numbers) if self._labels else values(y, y_name, numbers)
        return inputs(x, x_name, numbers), targets

    def _records(self, numbers: Array) -> list[bytes]:
        try:
            records: list[bytes] = self._source.__getitems__(numbers.tolist())
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(f"{self._where}: cannot read its records: {error}; copy or write the file again") from None
        return records

    def _decode(self, number: int, record: bytes) -> Pair:
        try:
            with np.load(io.BytesIO(record), allow_pickle=False) as archive:
                x, y = (archive[name] for name in self._names)
        except KeyError:
            raise UserError(
                f"{self._where}: record {number} has the arrays {', '.join(archive.files)}, "
                f"not {' and '.join(self._names)}: name them with data.x and data.y"
            ) from None
        except (ValueError, TypeError, AttributeError, EOFError, OSError, zipfile.BadZipFile, zlib.error):
            raise UserError(
                f"{self._where}: record {number} is not an .npz archive of numbers; "
                "write each record with numpy.savez(file, x=..., y=...)"
            ) from None
        return x, y

    def _highest_label(self) -> int:
        parts = np.split(np.arange(self.size), range(_SCAN, self.size, _SCAN))
        return max(int(self.read(numbers)[1].max()) for numbers in parts)


class RecordExamples:
    """The `size` examples from record `first` on."""

    def __init__(self, files: RecordFiles, first: int, size: int, weighted: bool) -> None:
        self._files = files
        self._first = first
        self._weighted = weighted
        self.size = size

    def gather(self, indices: Array, epochs: Array) -> Batch:
        """Return {"x": float32[B, ...], "y": int32[B] or float32[B, outputs]}, and "weights", float32[B], for validation."""
        x, y = self._files.read(indices + self._first)
        return {"x": x, "y": y, **({"weights": np.ones(len(x), np.float32)} if self._weighted else {})}


def array_record_dataset(section: ArrayRecordData, config: Config) -> Dataset:
    """Return the dataset of the files, sorted by name. Raises UserError for files or records that cannot be used."""
    paths = record_files(section.path)
    files = RecordFiles(section, config.task, paths)
    validation = held_out(files.size, section.validation, f"data.path {section.path}")
    train = files.size - validation
    return Dataset(
        RecordExamples(files, 0, train, weighted=False),
        RecordExamples(files, train, validation, weighted=True),
        fingerprint=_fingerprint(paths, f"{section.x} {section.y} {train}"),
        shape=files.shape,
        outputs=files.outputs,
    )


def _open(files: list[Path], where: str) -> Any:
    try:
        import array_record  # noqa: F401  # grain installs it on some platforms only
        import grain
    except ImportError:
        raise UserError("data.name array_record needs grain and array-record: pip install grain array-record") from None
    try:
        return grain.sources.ArrayRecordDataSource([str(file) for file in files])
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(
            f"{where}: cannot read it as ArrayRecord: {error}; give files of an ArrayRecordWriter"
        ) from None


def _fingerprint(files: list[Path], use: str) -> bytes:
    """Return a digest of `use` and of the files' names, sizes and ends; a file's index is at its end."""
    digest = hashlib.blake2b(use.encode(), digest_size=16)
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size};".encode())
        with path.open("rb") as file:
            digest.update(file.read(_END))
            file.seek(max(0, size - _END))
            digest.update(file.read(_END))
    return digest.digest()
