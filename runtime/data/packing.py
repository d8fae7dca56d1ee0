"""Pack documents into rows: each row has several whole documents, so that little of it is padding.

Documents are packed by best fit, the longest first, among `_TOGETHER` documents at a time (Ding et al. 2024, "Fewer
Truncations Improve Language Modeling"). One that is longer than a row is cut into rows of its own, of which each begins with
the last token of the one before: that token is not predicted twice. What is left over is packed like a document.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .base import Batch, Origin
from .windows import Source, Stream

Array = np.ndarray[Any, Any]

_TOGETHER = 1 << 16
_UNUSED = 30 * 86400.0  # seconds after which stored rows are removed
_VERSION = 1
"""Part of the names of stored rows: rows of another version are made anew."""


@dataclass(frozen=True)
class Rows:
    """Documents packed into rows.

    Attributes:
        first: number of each row's first piece, and after the last row the number of pieces: int64[rows + 1].
        starts: index of each piece's first token among all tokens, int64[pieces].
        sizes: tokens of each piece, int32[pieces].
    """

    first: Array
    starts: Array
    sizes: Array

    def __len__(self) -> int:
        return len(self.first) - 1

    def pieces(self, row: int) -> tuple[Array, Array]:
        """Return (starts, sizes) of a row's pieces."""
        here = slice(int(self.first[row]), int(self.first[row + 1]))
        return self.starts[here], self.sizes[here]


def pack(ends: Array, width: int) -> Rows:
    """Pack documents into rows of `width` tokens.

    Args:
        ends: index after each document's last token, int64[documents]; the documents follow one another.
        width: tokens of a row, at least 2.
    """
    begins = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    first, starts, sizes = [np.zeros(1, np.int64)], [], []
    for at in range(0, len(ends), _TOGETHER):
        pieces = _pieces(begins[at : at + _TOGETHER], ends[at : at + _TOGETHER], width)
        rows = _best_fit(pieces[1], width)
        order = np.fromiter((piece for row in rows for piece in row), np.int64, len(pieces[1]))
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        first.append(first[-1][-1] + np.cumsum(counts))
        starts.append(pieces[0][order])
        sizes.append(pieces[1][order])
    if not starts:
        return Rows(first[0], np.zeros(0, np.int64), np.zeros(0, np.int32))
    return Rows(np.concatenate(first), np.concatenate(starts), np.concatenate(sizes))


def _pieces(begins: Array, ends: Array, width: int) -> tuple[Array, Array]:
    """Return (starts, sizes) of the pieces of documents: one per document, or several if it is longer than a row."""
    lengths = ends - begins
    # A piece repeats the last token of the one before, so that all but the first add `width` - 1 tokens.
    counts = np.maximum(1, -(-(lengths - 1) // (width - 1)))
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(begins, counts) + number * (width - 1)
    return starts, np.minimum(np.repeat(ends, counts) - starts, width).astype(np.int32)


def _best_fit(sizes: Array, width: int) -> list[list[int]]:
    """Return the pieces of each row: each goes, the longest first, into the fullest row that has room for it."""
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = defaultdict(list)
    rooms = 0
    """Bit n is set if a row has room for n tokens."""
    for piece in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[piece])
        if enough := rooms >> size:
            room = size + (enough & -enough).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
            rows[row].append(piece)
        else:
            room, row = width, len(rows)
            rows.append([piece])
        if left := room - size:
            with_room[left].append(row)
            rooms |= 1 << left
    return rows


class PackedRows:
    """Rows of whole documents.

    Args:
        tokens: all documents one after another, [tokens].
        rows: the documents of each row.
        context: number of tokens of a row, minus one.
        source: the origin of the tokens.
        answers: 1 for each token that is to be learned, uint8[tokens]; None: all are.
    """

    def __init__(self, tokens: Stream, rows: Rows, context: int, source: Source, answers: Stream | None = None) -> None:
        self._tokens = tokens
        self._rows = rows
        self._context = context
        self._source = source
        self._answers = answers
        self.size = len(rows)

    def gather(self, indices: Array, epochs: Array) -> Batch:
        """Return {"tokens": int32[B, T + 1], "segments": int32[B, T], "weights": float32[B, T]}.

        `segments` are the numbers of a row's documents, from 1 on; 0 is padding. `weights` are 1 for each token that is
        predicted, and 0 for the first of a document, for one that is not to be learned, and for padding.
        """
        width, numbers = self._context + 1, indices.tolist()
        bounds = [(int(self._rows.first[row]), int(self._rows.first[row + 1])) for row in numbers]
        pieces = np.array([end - first for first, end in bounds])
        starts, sizes = (
            np.concatenate([array[first:end] for first, end in bounds])
            for array in (self._rows.starts, self._rows.sizes)
        )
        ends = np.cumsum(sizes, dtype=np.int64)
        rows = np.repeat(np.arange(len(numbers)), pieces)
        before = np.concatenate([[0], ends])[np.cumsum(pieces) - pieces]  # tokens of earlier rows
        places = rows * width + ends - sizes - before[rows]
        filled = np.repeat(places - ends + sizes, sizes) + np.arange(ends[-1])

        tokens = np.zeros(len(numbers) * width, np.int32)
        for place, start, size in zip(places.tolist(), starts.tolist(), sizes.tolist(), strict=True):
            tokens[place : place + size] = self._tokens[start : start + size]
        if int(tokens.max()) >= self._source.vocabulary or int(tokens.min()) < 0:  # ids from 2^31 on are negative here
            self._source.check(
                tokens[filled].view(np.uint32), np.repeat(starts - ends + sizes, sizes) + np.arange(ends[-1])
            )
        numbered = np.zeros(len(numbers) * width, np.int32)
        first_piece = np.cumsum(pieces) - pieces
        numbered[filled] = np.repeat(np.arange(1, len(sizes) + 1) - first_piece[rows], sizes)
        segments = numbered.reshape(len(numbers), width)
        counted = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        if self._answers is not None:
            answers = np.zeros(len(numbers) * width, bool)
            for place, start, size in zip(places.tolist(), starts.tolist(), sizes.tolist(), strict=True):
                answers[place : place + size] = self._answers[start : start + size]
            counted &= answers.reshape(len(numbers), width)[:, 1:]
        return {
            "tokens": tokens.reshape(len(numbers), width),
            "segments": np.ascontiguousarray(segments[:, :-1]),
            "weights": counted.astype(np.float32),
        }

    def trained(self, indices: Array, epochs: Array) -> int:
        """Return the number of tokens with a weight of 1 in these rows."""
        if self._answers is not None:
            pieces = (piece for row in map(self._rows.pieces, indices.tolist()) for piece in zip(*row, strict=True))
            return sum(int(self._answers[start + 1 : start + size].sum(dtype=np.int64)) for start, size in pieces)
        return sum(int(sizes.sum()) - len(sizes) for _, sizes in map(self._rows.pieces, indices.tolist()))

    def origins(self, index: int, epoch: int) -> list[Origin]:
        """Return the origin of each document that is packed into an example."""
        pieces = zip(*self._rows.pieces(index), strict=True)
        return [self._source.origin(int(start), int(size)) for start, size in pieces]

    @property
    def padding(self) -> float:
        """Return the share of padding in all rows."""
        return 1 - int(self._rows.sizes.sum(dtype=np.int64)) / max(1, self.size * (self._context + 1))


def stored_rows(digest: bytes, ends: Callable[[], Array], width: int, folder: Path) -> Rows:
    """Return the rows of documents, packed once and then read from `folder`, which all processes of a host share.

    Args:
        digest: digest of the documents' lengths and order.
        ends: returns the ends of the documents, as for `pack`.
        width: tokens of a row.
        folder: the folder of stored rows. If it cannot be written to, the documents are packed each time.
    """
    name = hashlib.blake2b(digest + f"{_VERSION} {_TOGETHER} {width}".encode(), digest_size=16).hexdigest()
    if (rows := _read(folder / name)) is not None:
        return rows
    with _one_at_a_time(folder):
        if (rows := _read(folder / name)) is not None:  # another process was faster
            return rows
        shutil.rmtree(folder / name, ignore_errors=True)  # damaged, if it is there
        rows = pack(ends(), width)
        with suppress(OSError):
            _remove_unused(folder)
            _write(rows, folder / name)
            return _read(folder / name) or rows
        return rows


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Context manager: let one process of the host pack at a time. If the folder cannot be locked, all pack at once."""
    with ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context((folder / "lock").open("w")), fcntl.LOCK_EX)
        yield


_FIELDS = ("first", "starts", "sizes")


def _read(folder: Path) -> Rows | None:
    try:
        # A view as a plain array: slices of a memmap take many times as long.
        arrays = [
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray) for name in _FIELDS
        ]
    except (OSError, ValueError, EOFError):
        return None
    with suppress(OSError):
        os.utime(folder)  # used now
    rows = Rows(*arrays)
    is_whole = len(rows.first) and rows.first[-1] == len(rows.starts) == len(rows.sizes)
    return rows if is_whole else None


def _remove_unused(folder: Path) -> None:
    """Remove rows that no job has used for a month. Raises OSError."""
    for path in folder.iterdir():
        if path.is_dir() and time.time() - path.stat().st_mtime > _UNUSED:
            shutil.rmtree(path, ignore_errors=True)


def _write(rows: Rows, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".packing-"))
    try:
        for name in _FIELDS:
            with (partial / f"{name}.npy").open("wb") as file:
                np.save(file, getattr(rows, name))
                file.flush()
                os.fsync(file.fileno())
        partial.rename(folder)  # fails if another process was faster: its rows are the same
    finally:
        shutil.rmtree(partial, ignore_errors=True)
