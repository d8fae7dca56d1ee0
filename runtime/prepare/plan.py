"""Divide the sources into units, each of which becomes a shard, and remember what a folder is made from.

plan.json               the arguments, the source files and the units; compared when the command is given again
.prepare/lock           held by the process that writes the folder
.prepare/NNNNN.json     says that shard NNNNN is complete, and what it has
.prepare/NNNNN.origins  numbers of documents from the beginning of a piece, for a unit whose first line is not known yet
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from ..contract import UserError
from ..data.prepared_files import write_durably
from .documents import Piece, ReadError, opened_arrow, opened_parquet, record_batches, shown
from .sources import SourceFile, Sources

PLAN, WORK = "plan.json", ".prepare"
_FORMAT = 1
_LARGEST, _SMALLEST, _UNITS = 64 << 20, 1 << 20, 256
_MOST_PIECES = 2000  # of a unit: small files
_UNPACKED = 4  # bytes of a compressed file that count as one, because more come out
_SHOWN = 5  # differences that are named
_ALL = 1 << 62


@dataclass(frozen=True)
class Arguments:
    """Arguments that determine the content of a folder."""

    column: str | None
    template: str | None
    tokenizer: Literal["byte", "char", "bpe"]
    digest: str | None
    """Digest of tokenizer.json; None for char, whose tokenizer is made from the sources."""
    eos: int | None
    """None for char and for conversations, whose template ends them."""
    chat: str | None
    """Digest of the chat template; None for text."""
    pairs: bool = False
    """Documents are pairs of conversations."""


@dataclass(frozen=True)
class Plan:
    """Sources, and the units that they are divided into."""

    format: int
    arguments: Arguments
    sources: list[SourceFile]
    units: list[list[Piece]]
    now: str | None
    """The time that chat templates write, ISO 8601, local time: when the first command started. None for text."""

    @property
    def size(self) -> int:
        """Return how many bytes of files will be read; compressed files count with their stored size."""
        return sum(piece.size for unit in self.units for piece in unit)


def make_plan(arguments: Arguments, sources: Sources) -> Plan:
    """Divide the sources into units, which depend on the sources alone. Raises UserError for files that cannot be read."""
    total = sum(_weight(file) for file in sources.files)
    unit_size = min(_LARGEST, max(_SMALLEST, total // _UNITS))
    units: list[list[Piece]] = []
    unit: list[Piece] = []
    weight = 0
    try:
        for number, (file, path) in enumerate(zip(sources.files, sources.paths, strict=True)):
            for piece in _pieces(number, file, path, unit_size):
                piece_weight = piece.size * (_UNPACKED if file.compression else 1)
                if unit and (weight + piece_weight > unit_size or len(unit) >= _MOST_PIECES):
                    units.append(unit)
                    unit, weight = [], 0
                unit.append(piece)
                weight += piece_weight
    except ReadError as error:
        raise UserError(str(error)) from None
    now = datetime.now().isoformat(timespec="seconds") if arguments.chat is not None else None
    return Plan(_FORMAT, arguments, sources.files, [*units, unit] if unit else units, now)


def _weight(file: SourceFile) -> int:
    return file.size * (_UNPACKED if file.compression else 1)


def _pieces(number: int, file: SourceFile, path: str, unit_size: int) -> Iterator[Piece]:
    if file.kind == "jsonl" and not file.compression:
        for start in range(0, max(1, file.size), unit_size):
            end = min(file.size, start + unit_size)
            yield Piece(number, start, end, end - start, None if start else 0)
    elif file.kind == "parquet":
        yield from _row_groups(number, file, path, unit_size)
    elif file.kind == "arrow" and file.size > unit_size:
        yield from _batches(number, file, path, unit_size)
    else:
        yield Piece(number, 0, _ALL, file.size, 0)


def _row_groups(number: int, file: SourceFile, path: str, unit_size: int) -> Iterator[Piece]:
    """Yield row groups, several together if they are small. Sizes count all columns, uncompressed."""
    with opened_parquet(file.name, path) as parquet:
        facts = [parquet.metadata.row_group(group) for group in range(parquet.metadata.num_row_groups)]
    whole = sum(group.total_byte_size for group in facts) or 1
    start = first = size = row = 0
    for group, fact in enumerate(facts):
        if size and size + fact.total_byte_size > unit_size:
            yield Piece(number, start, group, size * file.size // whole, first)
            start, first, size = group, row, 0
        size += fact.total_byte_size
        row += fact.num_rows
    yield Piece(number, start, len(facts), size * file.size // whole, first)


def _batches(number: int, file: SourceFile, path: str, unit_size: int) -> Iterator[Piece]:
    """Yield ranges of record batches. All batches are assumed to have the same size."""
    reader = opened_arrow(file.name, path)
    try:
        count = getattr(reader, "num_record_batches", None) or sum(1 for _ in record_batches(reader, 0, _ALL))
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise ReadError(f"{shown(file.name)} is not an Arrow file that can be read: {error}") from None
    step = max(1, unit_size * count // file.size)
    for start in range(0, max(1, count), step):
        end = min(count, start + step)
        yield Piece(number, start, end, file.size * (end - start) // max(1, count), None if start else 0)


def save_plan(folder: Path, plan: Plan) -> None:
    """Write the plan of a folder. Raises OSError."""
    write_durably(folder / PLAN, json.dumps(asdict(plan)).encode())


def load_plan(folder: Path) -> Plan | None:
    """Read the plan of a folder; None if it has none. Raises UserError if it is damaged or of another version."""
    path = folder / PLAN
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    remedy = "give another folder with -o, or --overwrite to begin anew"
    try:
        fields = json.loads(content)
        if fields["format"] != _FORMAT:
            raise UserError(f"{path} is of another version of podrun; {remedy}")
        return TypeAdapter(Plan).validate_json(content, strict=True)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{path} is damaged, or was not written by `podrun prepare`; {remedy}") from None


def differences(before: Plan, now: Arguments, sources: list[SourceFile]) -> list[str]:
    """Return how a command differs from the one that a folder was begun with, in words; empty if it does not."""
    rows = []
    for key, name in (("column", "--column"), ("template", "--template"), ("tokenizer", "--tokenizer")):
        old, new = getattr(before.arguments, key), getattr(now, key)
        if old != new:
            rows.append(f"{name} was {_word(old)} and is {_word(new)}")
    if (before.arguments.chat is None) != (now.chat is None):
        option = _option(before.arguments if now.chat is None else now)
        rows.append(
            f"{option} was {'given' if now.chat is None else 'not given'} and is {'not ' * (now.chat is None)}given"
        )
    elif before.arguments.pairs != now.pairs:
        rows.append(f"{_option(before.arguments)} was given, and {_option(now)} is given now")
    elif before.arguments.chat != now.chat:
        rows.append("the chat template has another content than before")
    if before.arguments.tokenizer == now.tokenizer and before.arguments.digest != now.digest:
        rows.append("--tokenizer has another content than before")
    elif before.arguments.tokenizer == now.tokenizer and before.arguments.eos != now.eos:
        rows.append(f"--eos: a document ended with id {before.arguments.eos} and ends with {now.eos}")
    old_files, new_files = ({file.name: file for file in files} for files in (before.sources, sources))
    rows += [f"{shown(name)} is no longer a source" for name in old_files if name not in new_files]
    rows += [f"{shown(name)} is a new source" for name in new_files if name not in old_files]
    for name, file in new_files.items():
        old_file = old_files.get(name)
        if old_file is not None and old_file != file:
            change = (
                f"had {old_file.size:,} bytes and has {file.size:,}" if old_file.size != file.size else "was changed"
            )
            rows.append(f"{shown(name)} {change}")
    if not rows and before.sources != sources:
        rows.append("the sources are in another order")
    return rows if len(rows) <= _SHOWN else [*rows[:_SHOWN], f"and {len(rows) - _SHOWN} more differences"]


def _option(arguments: Arguments) -> str:
    return "--pairs" if arguments.pairs else "--chat"


def _word(value: Any) -> str:
    return "not given" if value is None else str(value)


def shard_name(number: int) -> str:
    """Return the name of the shard of a unit."""
    return f"{number:05d}"
