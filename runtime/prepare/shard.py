"""Write the files of one shard, and the record that says that it is complete."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from pydantic import TypeAdapter

from ..contract import UserError
from ..data.prepared_files import ANSWERS, sync_folder, write_durably
from .chat import ChatError, Conversations
from .documents import Bad, BadTextError, Found, Piece, ReadError, Selection, bad_reason, documents, shown
from .plan import WORK
from .tokenizer import Encoder, Ids

_BATCH = 1 << 18  # characters encoded at a time
_FIRST_BAD = 5  # bad lines of a shard that are remembered
_DOCUMENTS = 2000  # encoded at a time at most


@dataclass
class PieceRecord:
    """Counts of a piece that was written."""

    documents: int = 0
    bad: int = 0
    empty: int = 0
    answers: int = 0
    """Tokens that are learned, of conversations."""
    left_out: int = 0
    """Answers of conversations that are not learned."""
    lines: int = 0
    """Lines or rows, whatever they had."""


@dataclass(frozen=True)
class BadRecord:
    """A line, row or file that could not be used."""

    piece: int
    """Number of the piece in its unit."""
    number: int
    """Line or row, counted in its piece."""
    reason: str


@dataclass(frozen=True)
class ShardRecord:
    """The content of a complete shard."""

    documents: int
    tokens: int
    sha256: dict[str, str]
    """Digests of the files; without `origins`, whose first line may not be known yet."""
    pieces: list[PieceRecord]
    bad: list[BadRecord]
    """The first ones."""


class WriteError(OSError):
    """The folder cannot be written."""


class StrictError(Exception):
    """A line is bad, and the option --strict accepts none."""

    def __init__(self, bad: BadRecord) -> None:
        super().__init__(bad.reason)
        self.bad = bad


class _Part:
    """A file of a shard under a temporary name, with its digest."""

    def __init__(self, path: Path, name: str, part: str) -> None:
        self._path, self._final = path / f"{name}.{part}.{os.getpid()}", (path, name, part)
        self.part = part
        self._digest = hashlib.sha256()
        self._file: BinaryIO = self._path.open("wb", buffering=1 << 20)
        self._mark = (0, self._digest.copy())

    def write(self, values: Ids) -> None:
        data = np.ascontiguousarray(values).view(np.uint8).data
        self._digest.update(data)
        self._file.write(data)

    def mark(self) -> None:
        """Remember the present end of the file, for `rewind`."""
        self._mark = (self._file.tell(), self._digest.copy())

    def rewind(self) -> None:
        """Discard all that was written since `mark`."""
        position, self._digest = self._mark
        self._file.seek(position)
        self._file.truncate()

    def close(self) -> str:
        """Flush the content to the disk, and return its digest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()

    def rename(self, folder: Path) -> None:
        _, name, part = self._final
        self._path.replace(folder / f"{name}.{part}")

    def remove(self) -> None:
        try:
            self._file.close()
        except OSError:
            pass  # what is buffered does not fit on the disk
        self._path.unlink(missing_ok=True)


class ShardWriter:
    """Write documents, each as (ids, answers or None, origin).

    At the end of the `with` block, files that `finish` has not completed are removed.

    Args:
        folder: the folder to write.
        name: name of the shard.
        dtype: dtype of the ids.
        has_answers: every document has answers.
    """

    def __init__(self, folder: Path, name: str, dtype: str, has_answers: bool = False) -> None:
        self._folder, self._name = folder, name
        self._parts: list[_Part] = []
        try:
            self._tokens = self._open("tokens")
            self._answers = self._open(ANSWERS) if has_answers else None
        except OSError as error:
            self._remove()
            raise WriteError(*error.args) from error
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._ends, self._origins = array("q"), array("q")
        self.tokens = 0
        self._begun = 0

    @property
    def documents(self) -> int:
        return len(self._ends)

    def add(self, ids: Ids, answers: Ids | None, origin: tuple[int, int]) -> None:
        """Write a document. Raises WriteError."""
        self.begin()
        self.extend(ids, answers)
        self.end(origin)

    def begin(self) -> None:
        """Begin a document that comes in parts."""
        self._begun = self.tokens

    def mark(self) -> None:
        """Begin a document that comes in parts and may be discarded."""
        self.begin()
        self._tokens.mark()
        if self._answers is not None:
            self._answers.mark()

    def extend(self, ids: Ids, answers: Ids | None = None) -> None:
        """Write a part of the document. Raises WriteError."""
        try:
            self._tokens.write(ids.astype(self._dtype, copy=False))
            if self._answers is not None:
                assert answers is not None
                self._answers.write(answers.astype(np.uint8, copy=False))
        except OSError as error:
            raise WriteError(*error.args) from error
        self.tokens += len(ids)

    def end(self, origin: tuple[int, int]) -> None:
        """End the document."""
        self._ends.append(self.tokens)
        self._origins.extend(origin)

    def discard(self) -> None:
        """Discard the document since `mark`. Raises WriteError."""
        try:
            self._tokens.rewind()
            if self._answers is not None:
                self._answers.rewind()
        except OSError as error:
            raise WriteError(*error.args) from error
        self.tokens = self._begun

    def finish(self, pieces: list[PieceRecord], bad: list[BadRecord]) -> ShardRecord:
        """Complete the shard: its files, then its record. Raises WriteError."""
        try:
            ends, origins = self._open("ends"), self._open("origins")
            ends.write(np.frombuffer(self._ends, np.int64).astype("<i8") if self._ends else np.empty(0, "<i8"))
            origins.write(np.frombuffer(self._origins, np.int64).astype("<i8") if self._origins else np.empty(0, "<i8"))
            digests = {part.part: part.close() for part in self._parts}
            del digests["origins"]
            for part in self._parts:
                part.rename(self._folder / WORK if part is origins else self._folder)
            self._parts.clear()
            sync_folder(self._folder)
            record = ShardRecord(self.documents, self.tokens, digests, pieces, bad)
            write_durably(record_path(self._folder, self._name), json.dumps(asdict(record)).encode())
        except OSError as error:
            raise WriteError(*error.args) from error
        return record

    def _open(self, part: str) -> _Part:
        self._parts.append(_Part(self._folder / WORK, self._name, part))
        return self._parts[-1]

    def _remove(self) -> None:
        for part in self._parts:
            part.remove()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()


def record_path(folder: Path, name: str) -> Path:
    """Return the path of a shard's record."""
    return folder / WORK / f"{name}.json"


def complete_shard(folder: Path, name: str, width: int, has_answers: bool = False) -> ShardRecord | None:
    """Return the record of a shard if it is complete; None if it is not, or a file of it is missing. Raises OSError.

    Args:
        folder: the folder.
        name: name of the shard.
        width: bytes of an id.
        has_answers: the shard has answers.
    """
    try:
        record = TypeAdapter(ShardRecord).validate_json(record_path(folder, name).read_bytes(), strict=True)
        sizes = {
            folder / f"{name}.tokens": record.tokens * width,
            folder / f"{name}.ends": record.documents * 8,
            folder / WORK / f"{name}.origins": record.documents * 16,
            **({folder / f"{name}.{ANSWERS}": record.tokens} if has_answers else {}),
        }
        return record if all(path.stat().st_size == size for path, size in sizes.items()) else None
    except (FileNotFoundError, ValueError):
        return None


@dataclass(frozen=True)
class Input:
    """A piece, and the file that it is a part of."""

    piece: Piece
    name: str
    path: str
    kind: str
    compression: str
    size: int
    version: str | None
    """Time of the last change in ns; None for an object of a bucket, whose copy does not change."""

    def check(self) -> None:
        """Raise ReadError if the file has changed since the sources were listed."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise ReadError(f"cannot read {shown(self.name)}: {error.strerror}") from None
        if self.version is not None and (status.st_size, str(status.st_mtime_ns)) != (self.size, self.version):
            raise ReadError(
                f"{shown(self.name)} was changed while it was read; prepare files that nobody writes, with --overwrite or in "
                "another folder"
            )


Report = Callable[[int, int], None]
"""Gets the bytes that were read and the tokens that were written."""


def write_shard(
    writer: ShardWriter,
    inputs: list[Input],
    selection: Selection,
    encoder: Encoder | Conversations,
    strict: bool,
    report: Report,
) -> ShardRecord:
    """Write the documents of a unit.

    Raises:
        ReadError: a file is damaged.
        StrictError: a line is bad, and `strict` is set.
        WriteError: the folder cannot be written.
    """
    pieces: list[PieceRecord] = []
    bad: list[BadRecord] = []
    read_before = 0
    for number, given in enumerate(inputs):
        record = PieceRecord()
        pieces.append(record)
        read = 0
        given.check()
        for batch in _batches(documents(given.piece, given.name, given.path, given.kind, given.compression, selection)):

            def on_part(
                characters: int, before: int = read_before, read: int = read, size: int = given.piece.size
            ) -> None:
                report(before + min(size, read + characters), writer.tokens)

            if isinstance(encoder, Conversations):
                bads = _write_conversations(writer, batch, given, record, encoder, selection.pairs)
            else:
                bads = _write_batch(writer, batch, given, record, encoder, on_part)
            for place, reason in bads:
                failed = BadRecord(number, place, reason)
                if strict:
                    raise StrictError(failed)
                if len(bad) < _FIRST_BAD:
                    bad.append(failed)
            record.bad += len(bads)
            record.lines = max(record.lines, _line_count(batch[-1], given.kind))
            read = min(given.piece.size, read + sum(found_one.read for found_one in batch))
            report(read_before + read, writer.tokens)
        given.check()
        read_before += given.piece.size
        report(read_before, writer.tokens)
    return writer.finish(pieces, bad)


def _write_conversations(
    writer: ShardWriter, batch: list[Found], given: Input, record: PieceRecord, encoder: Conversations, pairs: bool
) -> list[tuple[int, str]]:
    """Write conversations, or pairs of them. Return (number, reason) of the bad ones."""
    bads = []
    for row in batch:
        if not isinstance(row.text, str):
            assert isinstance(row.text, Bad)
            bads.append((row.number, row.text.reason))
        elif not row.text:
            record.empty += 1
        else:
            try:
                fields = json.loads(row.text)
                conversations = encoder.encode_pair(fields) if pairs else [encoder.encode(fields)]
            except ChatError as error:
                bads.append((row.number, str(error)))
                continue
            origin = (given.piece.source, (given.piece.first or 0) + row.number)
            for conversation in conversations:
                writer.add(conversation.ids, conversation.answers, origin)
                record.documents += 1
                record.answers += int(conversation.answers.sum(dtype=np.int64))
                record.left_out += conversation.left_out
    return bads


def _line_count(last: Found, kind: str) -> int:
    return last.number if kind == "jsonl" else last.number + 1


def _batches(rows: Iterator[Found]) -> Iterator[list[Found]]:
    """Group documents, so that many small ones are encoded at once. A long one is alone in its group."""
    batch: list[Found] = []
    size = 0
    for row in rows:
        is_long = not isinstance(row.text, str | Bad) or (isinstance(row.text, str) and len(row.text) > _BATCH)
        if batch and (is_long or size > _BATCH or len(batch) >= _DOCUMENTS):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += len(row.text) if isinstance(row.text, str) else 0
        if is_long:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_batch(
    writer: ShardWriter,
    batch: list[Found],
    given: Input,
    record: PieceRecord,
    encoder: Encoder,
    on_part: Callable[[int], None],
) -> list[tuple[int, str]]:
    """Write documents. Return (number, reason) of the bad ones. `on_part` gets the characters read of a long one."""
    first = given.piece.first or 0
    only = batch[0]
    if (
        len(batch) == 1
        and not isinstance(only.text, Bad)
        and (not isinstance(only.text, str) or len(only.text) > _BATCH)
    ):
        return _write_long(writer, only, (given.piece.source, first + only.number), record, encoder, on_part)
    bads = [(row.number, row.text.reason) for row in batch if isinstance(row.text, Bad)]
    texts = [row for row in batch if isinstance(row.text, str) and row.text]
    record.empty += sum(row.text == "" for row in batch)
    for row, ids in zip(texts, encoder.batch([str(row.text) for row in texts]), strict=True):
        if len(ids):
            writer.begin()
            writer.extend(ids)
            writer.extend(encoder.end)
            writer.end((given.piece.source, first + row.number))
            record.documents += 1
        else:  # the tokenizer leaves all of it out
            record.empty += 1
    return bads


def _write_long(
    writer: ShardWriter,
    row: Found,
    origin: tuple[int, int],
    record: PieceRecord,
    encoder: Encoder,
    on_part: Callable[[int], None],
) -> list[tuple[int, str]]:
    assert not isinstance(row.text, Bad)
    text = row.text
    parts = (text[start : start + _BATCH] for start in range(0, len(text), _BATCH)) if isinstance(text, str) else text
    characters = 0

    def counted() -> Iterator[str]:
        nonlocal characters
        for part in parts:
            characters += len(part)
            yield part

    writer.mark()
    try:
        for ids in encoder.parts(counted()):
            on_part(characters)
            writer.extend(ids)
    except (UnicodeDecodeError, BadTextError, UserError) as error:
        writer.discard()
        return [(row.number, bad_reason(error))]
    writer.extend(encoder.end)
    writer.end(origin)
    record.documents += 1
    return []


def code_points(inputs: list[Input], selection: Selection, report: Report) -> list[int]:
    """Return the characters of a unit's documents, including documents that turn out to be bad. Raises ReadError."""
    seen = np.zeros(0x110000, bool)
    read_before = 0
    for given in inputs:
        for row in documents(given.piece, given.name, given.path, given.kind, given.compression, selection):
            parts: Any = () if isinstance(row.text, Bad) else [row.text] if isinstance(row.text, str) else row.text
            try:
                for part in parts:
                    seen[np.frombuffer(part.encode("utf-32-le"), np.uint32)] = True
            except (UnicodeDecodeError, BadTextError):
                pass  # told when it is encoded
        read_before += given.piece.size
        report(read_before, 0)
    return [int(point) for point in np.flatnonzero(seen)]
