"""Read the documents in a part of a file: text, lines of JSON, rows of Parquet or Arrow. Memory is bounded."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import string
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, NamedTuple

LONGEST_LINE = 16 << 20
"""Bytes of a line of JSON; longer ones are bad."""
WHOLE = 1 << 18
"""Bytes of a text that is read at once; longer ones come in parts."""
_ROWS = 4 << 20  # bytes of rows that are read at a time, about
_ALL = 1 << 62

Row = Mapping[str, Any]
"""The values of a line of JSON, or of a row, by column."""


class ReadError(Exception):
    """A file cannot be used. The message is for the user."""


class Bad(NamedTuple):
    """A line, row or file that cannot be used."""

    reason: str


class Found(NamedTuple):
    """The document in a line, row or file, or the reason why it is bad."""

    number: int
    """Its line, from 1, or its row, from 0, counted from the beginning of the piece."""
    text: str | Iterator[str] | Bad
    """An iterator yields the parts of a long text, and raises UnicodeError or `BadTextError`."""
    read: int
    """Bytes of the file that were read since the one before."""


class BadTextError(Exception):
    """A long text turns out to be bad. The message is the reason."""


@dataclass(frozen=True)
class Piece:
    """A part of a source file, from `start` to `end`."""

    source: int
    """Number of the file."""
    start: int
    """First byte, row group or record batch."""
    end: int
    """The one after the last."""
    size: int
    """Bytes to read, about, as they are in the file."""
    first: int | None
    """Number of lines or rows in the file before this piece; None if only reading these tells it."""


def shown(name: str) -> str:
    """Return a name of a file as one line of printable text."""
    return name if name.isprintable() else ascii(name)[1:-1]


CHAT_COLUMNS = ("messages", "conversations", "tools")
"""Columns of a conversation; `messages` or `conversations` must be there."""
PAIR_COLUMNS = ("prompt", "chosen", "rejected", "tools")
"""Columns of a pair of conversations; `chosen` and `rejected` must be there."""


@dataclass(frozen=True)
class Selection:
    """The columns that make a document. Both None: the column `text`."""

    column: str | None
    template: str | None
    chat: bool = False
    """Documents are conversations; their texts are JSON objects of `CHAT_COLUMNS`, or of `PAIR_COLUMNS` for pairs."""
    pairs: bool = False
    """Documents are pairs of conversations; `chat` is set as well."""

    @cached_property
    def fields(self) -> list[str]:
        """Return the names of the columns."""
        if self.template is None:
            return [self.column or "text"]
        return list(dict.fromkeys(field for _, field in _parsed(self.template) if field is not None))

    def check(self, name: str, columns: Sequence[str]) -> None:
        """Raise ReadError unless a file has the columns, each once."""
        wanted = set(self.present(columns))
        if twice := sorted({field for field in wanted if list(columns).count(field) > 1}):
            raise ReadError(
                f"{shown(name)} has more than one column {', '.join(map(shown, twice))}; rename them, so that it is clear "
                "which is meant"
            )
        if self.pairs:
            missing = [field for field in ("chosen", "rejected") if field not in columns]
            if missing:
                has = ", ".join(map(shown, columns[:20])) or "none"
                raise ReadError(
                    f"{shown(name)} has no column {' and no '.join(missing)}, which --pairs reads; it has {has}"
                )
            return
        if self.chat:
            if not any(field in columns for field in CHAT_COLUMNS[:2]):
                has = ", ".join(map(shown, columns[:20])) or "none"
                raise ReadError(
                    f"{shown(name)} has no column messages or conversations, which --chat reads; it has {has}"
                )
            return
        missing = [field for field in self.fields if field not in columns]
        if not missing:
            return
        option = "--template" if self.template is not None else "--column" if self.column else "--column or --template"
        has = ", ".join(map(shown, columns[:20])) or "none"
        remedy = f"name those of the text with {option}"
        if self.template is None and self.column is None and any(field in columns for field in CHAT_COLUMNS[:2]):
            remedy = "give --chat for conversations"
        if self.template is None and self.column is None and {"chosen", "rejected"} <= set(columns):
            remedy = "give --pairs for pairs of answers"
        raise ReadError(f"{shown(name)} has no column {', '.join(map(shown, missing))}; it has {has}: {remedy}")

    def present(self, columns: Sequence[str]) -> list[str]:
        """Return the columns to read, of those that a file has."""
        return [field for field in self._chat_columns if field in columns] if self.chat else self.fields

    @property
    def option(self) -> str:
        """Return the option that makes podrun read conversations, or pairs of them."""
        return "--pairs" if self.pairs else "--chat"

    @property
    def _chat_columns(self) -> tuple[str, ...]:
        return PAIR_COLUMNS if self.pairs else CHAT_COLUMNS

    def conversation(self, row: Row) -> str:
        """Return the conversation of a row, or its pair of conversations, as JSON."""
        fields = {field: row[field] for field in self._chat_columns if row.get(field) is not None}
        return json.dumps(fields, default=lambda value: type(value).__name__)  # such as bytes of an image

    def text(self, values: Sequence[Any]) -> str | Bad:
        """Return the document in a row; `values` are the row's values of the columns `fields`."""
        for field, value in zip(self.fields, values, strict=True):
            if not isinstance(value, str):
                return Bad(f"column {shown(field)} is {_type_name(value)}, not text")
        return values[0] if self.template is None else self._filled(values)

    def _filled(self, values: Sequence[str]) -> str:
        by_name = dict(zip(self.fields, values, strict=True))
        return "".join(text + (by_name[field] if field is not None else "") for text, field in self._parts)

    @cached_property
    def _parts(self) -> list[tuple[str, str | None]]:
        return _parsed(self.template or "")


def check_template(template: str) -> None:
    """Raise ReadError unless a template is text with the names of columns in braces."""
    try:
        fields = [field for _, field in _parsed(template)]
    except ValueError as error:
        raise ReadError(
            f"--template {template!r}: {error}; a brace of the text is written twice, {{{{ or }}}}"
        ) from None
    if not any(fields):
        raise ReadError(f"--template {template!r} names no column; give one in braces, for example {{text}}")


def _parsed(template: str) -> list[tuple[str, str | None]]:
    """Split a template into its parts: (text, column after the text). Raises ValueError."""
    parts = []
    for text, field, format_spec, conversion in string.Formatter().parse(template):
        if field == "" or format_spec or conversion:
            raise ValueError("braces have the name of a column and nothing else")
        parts.append((text, field))
    return parts


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), f"of type {type(value).__name__}")


def columns_of(name: str, path: str, kind: str, compression: str) -> list[str] | None:
    """Return the columns of a file; None if the first line of jsonl is bad. Raises ReadError."""
    if kind == "parquet":
        with opened_parquet(name, path) as file:
            return list(file.schema_arrow.names)
    if kind == "arrow":
        return list(opened_arrow(name, path).schema.names)
    try:
        with opened(name, path, compression) as (stream, _):
            line = stream.readline(LONGEST_LINE)
            row = json.loads(line.removeprefix(codecs.BOM_UTF8))
    except (*_DAMAGE, OSError) as error:
        raise ReadError(f"cannot read {shown(name)}: {_reason(error)}") from None
    except (ValueError, RecursionError):
        return None
    return list(row) if isinstance(row, dict) else None


def opened_parquet(name: str, path: str) -> Any:
    """Return a pyarrow.parquet.ParquetFile that reads as little as possible at a time. Raises ReadError."""
    arrow = _pyarrow(name)
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    except (arrow.ArrowException, OSError) as error:
        raise ReadError(f"{shown(name)} is not a Parquet file that can be read: {_reason(error)}") from None


_CONTINUES = b"\xff" * 4
"""Beginning of each message of an Arrow stream."""
_STREAM_END = _CONTINUES + b"\0" * 4


def opened_arrow(name: str, path: str) -> Any:
    """Return a reader of an Arrow file, or of a stream, which `datasets` writes. Raises ReadError."""
    arrow = _pyarrow(name)
    import pyarrow.ipc

    try:
        if not os.path.getsize(path):
            raise arrow.ArrowInvalid("the file is empty")
        mapped = arrow.memory_map(path)
        begin = mapped.read(6)
        is_file = begin == b"ARROW1"
        if begin.startswith(_CONTINUES):  # a stream, not of the format before 2019
            mapped.seek(max(0, mapped.size() - len(_STREAM_END)))
            if mapped.read() != _STREAM_END:
                raise arrow.ArrowInvalid("it is cut off: the mark at the end of a stream is missing")
        mapped.seek(0)
        return pyarrow.ipc.open_file(mapped) if is_file else pyarrow.ipc.open_stream(mapped)
    except (arrow.ArrowException, OSError) as error:
        raise ReadError(f"{shown(name)} is not an Arrow file that can be read: {_reason(error)}") from None


def _pyarrow(name: str) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ReadError(f"{shown(name)} needs pyarrow: pip install pyarrow") from None
    pyarrow.set_cpu_count(1)  # there is a process for each core
    pyarrow.set_io_thread_count(1)
    return pyarrow


_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)


@contextmanager
def opened(name: str, path: str, compression: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Context manager: open a file. Yields its unpacked content, and the file as it is. Raises ReadError, OSError."""
    with open(path, "rb", buffering=1 << 18) as file:
        stream: Any = file
        if compression == ".gz":
            stream = io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 18)
        elif compression == ".zst":
            stream = io.BufferedReader(_pyarrow(name).CompressedInputStream(file, "zstd"), 1 << 18)
        yield stream, file


def documents(piece: Piece, name: str, path: str, kind: str, compression: str, selection: Selection) -> Iterator[Found]:
    """Yield the document of each line, row or file in a piece.

    Raises:
        ReadError: the file is damaged, or cannot be read.
    """
    number = 0
    errors: tuple[type[Exception], ...] = (*_DAMAGE, OSError, *_arrow_errors(kind, compression))
    try:
        rows = {"text": _text, "jsonl": _lines, "parquet": _parquet, "arrow": _arrow}[kind]
        for row in rows(piece, name, path, compression, selection):
            number = row.number
            # The parts of a long text are read later, outside of this block.
            parts = row.text if isinstance(row.text, str | Bad) else _guarded(row.text, name, errors)
            yield row._replace(text=parts)
    except errors as error:
        place = f" after number {number + (piece.first or 0)}" if kind != "text" else ""
        raise _damaged(name, place, error) from None


def _guarded(parts: Iterator[str], name: str, errors: tuple[type[Exception], ...]) -> Iterator[str]:
    """Yield the parts of a long text. Raises ReadError if the file is damaged."""
    try:
        yield from parts
    except errors as error:
        raise _damaged(name, "", error) from None


def _damaged(name: str, place: str, error: Exception) -> ReadError:
    return ReadError(
        f"{shown(name)} is damaged or cannot be read{place}: {_reason(error)}; restore it, or leave it out"
    )


def _arrow_errors(kind: str, compression: str) -> tuple[type[Exception], ...]:
    if kind in ("parquet", "arrow") or compression == ".zst":
        return (_pyarrow("").ArrowException,)
    return ()


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return shown(text.splitlines()[0][:200])


# --- text: one file is one document ---------------------------------------------------------------------------------


def _text(piece: Piece, name: str, path: str, compression: str, selection: Selection) -> Iterator[Found]:
    with opened(name, path, compression) as (file, _):
        first = file.read(WHOLE).removeprefix(codecs.BOM_UTF8)
        rest = file.read(1)
        if rest:
            yield Found(0, _parts(first + rest, file), 0)
            return
        try:
            text: str | Bad = _without_nul(first).decode()
        except (UnicodeError, BadTextError) as error:
            text = Bad(bad_reason(error))
        yield Found(0, text, piece.size)


def _parts(first: bytes, file: IO[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    block = first
    while block:
        yield decoder.decode(_without_nul(block))
        block = file.read(WHOLE)
    decoder.decode(b"", final=True)


def _without_nul(block: bytes) -> bytes:
    if b"\0" in block:
        raise BadTextError("it has a NUL byte, so it is not a text")
    return block


def bad_reason(error: Exception) -> str:
    """Return the reason to report for a text that cannot be read."""
    return f"it is not UTF-8 ({error.reason})" if isinstance(error, UnicodeDecodeError) else str(error)


# --- lines of JSON --------------------------------------------------------------------------------------------------


def _lines(piece: Piece, name: str, path: str, compression: str, selection: Selection) -> Iterator[Found]:
    """Yield the lines that begin in the piece."""
    fields = selection.fields
    with opened(name, path, compression) as (file, packed):
        position = piece.start
        if not compression and piece.start:
            file.seek(piece.start - 1)
            position += _skip_line(file, piece.end - piece.start + 1) - 1  # a line that began in a piece before
        end = _ALL if compression else piece.end
        number, before = 0, piece.start
        while position < end:
            line = file.readline(LONGEST_LINE + 1)
            if not line:
                break
            number += 1
            position += len(line)
            if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
                position += _skip_line(file, end - position)
                text: str | Bad = Bad(f"it is longer than {LONGEST_LINE >> 20} MB")
            else:
                text = _row_text(line, number == 1 and not piece.start, fields, selection)
            here = packed.tell() if compression else position
            yield Found(number, text, here - before)
            before = here


def _skip_line(file: IO[bytes], limit: int) -> int:
    """Read the rest of a line, `limit` bytes of it at most. Return its length."""
    length = 0
    while length < limit and (block := file.readline(min(1 << 16, limit - length))):
        length += len(block)
        if block.endswith(b"\n"):
            break
    return length


def _row_text(line: bytes, is_first: bool, fields: list[str], selection: Selection) -> str | Bad:
    try:
        row = json.loads((line.removeprefix(codecs.BOM_UTF8) if is_first else line).decode()) if line.strip() else None
    except UnicodeDecodeError as error:
        return Bad(bad_reason(error))
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).partition(";")[0]
        return Bad(f"it is not JSON ({reason})")
    if row is None and not line.strip():
        return ""
    if not isinstance(row, dict):
        return Bad(f"it is {_type_name(row) if not isinstance(row, str) else 'text'}, not an object")
    if selection.chat:
        return selection.conversation(row)
    missing = next((field for field in fields if field not in row), None)
    if missing is not None:
        return Bad(f"it has no column {shown(missing)}")
    text = selection.text([row[field] for field in fields])
    return text if isinstance(text, Bad) else _valid(text)


def _valid(text: str) -> str | Bad:
    """Return the text, or Bad for half of a surrogate pair, which JSON can have and UTF-8 cannot."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        return Bad("it has half of a surrogate pair, which is not a character")
    return text


# --- rows of Parquet and Arrow --------------------------------------------------------------------------------------


def _parquet(piece: Piece, name: str, path: str, compression: str, selection: Selection) -> Iterator[Found]:
    with opened_parquet(name, path) as file:
        groups = range(piece.start, piece.end)
        rows = sum(file.metadata.row_group(group).num_rows for group in groups)
        size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
        batches = file.iter_batches(
            batch_size=max(1, min(10_000, _ROWS * rows // max(1, size))),
            row_groups=list(groups),
            columns=selection.present(file.schema_arrow.names),
            use_threads=False,
        )
        yield from _rows(batches, piece.size // max(1, rows), selection)


def _arrow(piece: Piece, name: str, path: str, compression: str, selection: Selection) -> Iterator[Found]:
    yield from _rows(record_batches(opened_arrow(name, path), piece.start, piece.end), 0, selection)


def record_batches(reader: Any, start: int, end: int) -> Iterator[Any]:
    """Yield record batches `start` to `end` of an Arrow file or stream. In a stream, those before `start` are skipped."""
    if hasattr(reader, "num_record_batches"):
        for number in range(start, min(end, reader.num_record_batches)):
            yield reader.get_batch(number)
        return
    for number, batch in enumerate(reader):
        if number >= end:
            return
        if number >= start:
            yield batch


def _rows(batches: Iterator[Any], read: int, selection: Selection) -> Iterator[Found]:
    number = 0
    for batch in batches:
        batch.validate()  # damaged offsets would end the process
        fields = selection.present(batch.schema.names)
        columns = [batch.column(batch.schema.get_field_index(field)) for field in fields]
        step = max(1, _ROWS * len(batch) // max(1, sum(column.nbytes for column in columns)))
        for start in range(0, len(batch), step):
            for values in _values([column.slice(start, step) for column in columns]):
                if isinstance(values, Bad):
                    text: str | Bad = values
                elif selection.chat:
                    text = selection.conversation(dict(zip(fields, values, strict=True)))
                else:
                    text = selection.text(values)
                yield Found(number, text, read)
                number += 1


def _values(columns: list[Any]) -> Iterator[tuple[Any, ...] | Bad]:
    """Yield the values of each row; Bad for text that is not UTF-8, which these formats do not check."""
    try:
        yield from zip(*(column.to_pylist() for column in columns), strict=True)
        return
    except UnicodeDecodeError:
        pass
    for row in range(len(columns[0])):
        try:
            values: tuple[Any, ...] | Bad = tuple(column[row].as_py() for column in columns)
        except UnicodeDecodeError as error:
            values = Bad(bad_reason(error))
        yield values
