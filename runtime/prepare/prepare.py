"""Write a folder of token ids: find the sources, divide them, have the units written, and complete the folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from ..contract import UserError
from ..data.prepared_files import (
    FORMAT,
    MANIFEST,
    TOKENIZER,
    PreparedManifest,
    PreparedShard,
    PreparedSource,
    PreparedTokenizer,
    file_digest,
    read_manifest,
    sync_folder,
    tokenizer_digest,
    tokenizer_file,
    write_durably,
    write_manifest,
)
from ..data.saved_tokenizer import Saved, saved_form
from ..data.tokenizers import BytePairs
from ..queries import PrepareAnswer, PrepareLine, PrepareProgress, PrepareQuery
from ..wording import counted
from .chat import ChatTemplate, Conversations
from .documents import CHAT_COLUMNS, PAIR_COLUMNS, Piece, ReadError, Selection, check_template, shown
from .plan import PLAN, WORK, Arguments, Plan, differences, load_plan, make_plan, save_plan, shard_name
from .shard import ShardRecord, complete_shard
from .sources import Sources, find_sources
from .tokenizer import End, chat_template, find_end, load_tokenizer
from .workers import BadLine, ChatFields, Done, Failure, InputFields, Job, Order, PieceFields, WorkerError, work_on

_OWN = re.compile(r"\.?(manifest|plan|tokenizer)\.json(\.\d+)?|\d{5,12}\.(tokens|ends|origins|answers)", re.ASCII)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BAD_SHOWN = 5
_EVERY = 0.2  # least seconds between two reports
_BLOCK = 1 << 20

Say = Callable[[PrepareLine | PrepareProgress], None]
"""Sends the launcher a part of the answer."""


def prepare(query: PrepareQuery, say: Say) -> PrepareAnswer:
    """Write a prepared folder, or continue one that was begun.

    Raises:
        UserError: a source, the tokenizer or an option is wrong, the folder was begun with other sources, or the disk is
            full.
        UnavailableError: a bucket cannot be reached.
    """
    folder = Path(query["folder"])
    if query["chat"] and query["pairs"]:
        raise UserError("--chat and --pairs are both given; pairs are conversations as well: leave --chat out")
    selection = Selection(query["column"], query["template"], query["chat"] or query["pairs"], query["pairs"])
    if selection.chat and (selection.column is not None or selection.template is not None or query["eos"] is not None):
        columns = PAIR_COLUMNS if selection.pairs else CHAT_COLUMNS
        raise UserError(
            f"{selection.option} reads the columns {', '.join(columns[:-1])} and {columns[-1]}, and the chat template "
            "also ends a conversation; leave --column, --template and --eos out"
        )
    if selection.template is not None:
        if selection.column is not None:
            raise UserError("--column and --template are both given; a template names its columns itself")
        try:
            check_template(selection.template)
        except ReadError as error:
            raise UserError(str(error)) from None
    template = chat_template(query["tokenizer"], selection.option) if selection.chat else None
    tokenizer = load_tokenizer(query["tokenizer"])
    if template is not None:
        assert tokenizer is not None
        Conversations(template, tokenizer, datetime.now())  # raises UserError
    end = find_end(query["tokenizer"], tokenizer, query["eos"]) if template is None else None
    saved: Saved | None = saved_form(tokenizer)
    if query["tokenizer"] == "byte":
        saved = {"name": "byte"}
    arguments = Arguments(
        selection.column,
        selection.template,
        saved["name"] if saved is not None else "char",
        tokenizer_digest(tokenizer_file(saved)) if saved is not None else None,
        end.id if end is not None else None,
        template.digest if template is not None else None,
        selection.pairs,
    )
    sources = find_sources(query["sources"], folder, selection, lambda line: say({"line": line}))
    for note in sources.notes:
        say({"line": note})
    with _opened(folder, query["overwrite"]):
        plan, is_new = _plan(folder, arguments, sources)
        if (folder / MANIFEST).exists():
            return _complete(folder, query["strict"])
        say({"line": _first_line(plan, end, query["tokenizer"], template)})
        work = _Work(query, plan, sources, selection, template, say)
        try:
            if is_new:
                save_plan(folder, plan)
            if saved is None:
                saved = work.characters()
            if saved["name"] == "char":
                return work.finish(saved, len(saved["code_points"]))
            return work.finish(saved, end.id if end is not None else None)
        except OSError as error:
            raise _write_error(folder, error.errno, error.strerror or str(error), work.room()) from None


def _first_line(plan: Plan, end: End | None, tokenizer: str, template: ChatTemplate | None) -> str:
    if template is not None:
        last = f"; chat template of {shown(template.origin)}"
    else:
        last = (
            "" if end is None else f"; documents end with {end.token or 'id'} {f'({end.id})' if end.token else end.id}"
        )
    origin = f", by {end.origin}" if end is not None and end.token else ""
    files, parts = counted(len(plan.sources), "file"), counted(len(plan.units), "part")
    return f"{files}, {_megabytes(plan.size)}, in {parts}; tokenizer {shown(tokenizer)}{last}{origin}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.2f} GB"


@contextmanager
def _opened(folder: Path, overwrite: bool) -> Iterator[None]:
    """Context manager: make and lock the folder. Raises UserError if it has other files, or another process writes it."""
    work = folder / WORK
    try:
        others = [name for name in sorted(os.listdir(folder)) if name != WORK and not _OWN.fullmatch(name)]
        is_ours = work.is_dir() or (folder / PLAN).exists() or (folder / MANIFEST).exists()
        if others or (os.listdir(folder) and not is_ours):
            names = ", ".join(map(shown, others[:3])) or "files of another program"
            raise UserError(f"{folder} has other files ({names}); give an empty folder, or one that does not exist")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"-o {folder}: {error.strerror}; give a folder that can be written") from None
    try:
        work.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(work / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"-o {folder} cannot be written: {error.strerror}; give another folder") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another `podrun prepare` writes {folder}; wait for its end, or give another folder"
            ) from None
        if overwrite:
            _clear(folder)
        yield
    finally:
        if (folder / MANIFEST).exists():  # also if it was complete before
            shutil.rmtree(work, ignore_errors=True)
        os.close(descriptor)


def _clear(folder: Path) -> None:
    """Remove all that was prepared, the manifest first."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for name in os.listdir(folder):
        if _OWN.fullmatch(name):
            (folder / name).unlink(missing_ok=True)
    for name in os.listdir(folder / WORK):
        if name != "lock":
            (folder / WORK / name).unlink(missing_ok=True)


def _plan(folder: Path, arguments: Arguments, sources: Sources) -> tuple[Plan, bool]:
    """Return the plan of the folder, and whether it is new. Raises UserError if the folder was begun otherwise."""
    before = load_plan(folder)
    if before is None:
        if (folder / MANIFEST).exists():
            raise UserError(f"{folder} has a {MANIFEST} and no {PLAN}; give another folder with -o, or --overwrite")
        return make_plan(arguments, sources), True
    rows = differences(before, arguments, sources.files)
    if rows:
        listed = "\n".join(f"  {row}" for row in rows)
        raise UserError(
            f"{folder} was begun otherwise:\n{listed}\ngive another folder with -o, or --overwrite to begin anew"
        )
    return before, False


def _complete(folder: Path, strict: bool) -> PrepareAnswer:
    """Report on a folder that is complete already."""
    manifest = read_manifest(folder)
    bad = sum(source.bad for source in manifest.sources)
    if bad and strict:
        raise UserError(
            f"{folder} is complete, and {bad} lines of its sources were bad; correct them, and --overwrite it"
        )
    return _report(manifest, [], 0, 0, 0.0, True)


def _report(
    manifest: PreparedManifest, bad_shown: list[str], read: int, written: int, seconds: float, was_complete: bool
) -> PrepareAnswer:
    return PrepareAnswer(
        documents=manifest.documents,
        tokens=manifest.tokens,
        vocabulary=manifest.vocabulary,
        dtype=manifest.dtype,
        shards=len(manifest.shards),
        sources=len(manifest.sources),
        empty=sum(source.empty for source in manifest.sources),
        bad=sum(source.bad for source in manifest.sources),
        bad_shown=bad_shown,
        read=read,
        written=written,
        seconds=seconds,
        was_complete=was_complete,
        pairs=manifest.pairs,
    )


def _write_error(folder: Path, number: int | None, reason: str, room: tuple[int, int]) -> UserError:
    if number not in _FULL:
        return UserError(f"{folder} cannot be written: {reason}; complete parts are kept, and the same command goes on")
    needed, free = room
    return UserError(
        f"the disk of {folder} is full: about {_megabytes(needed)} more are needed, {_megabytes(free)} are free; make room "
        "there, and the same command goes on: the parts that are complete are kept"
    )


class _Progress:
    """The progress of each unit, which is sent to the launcher from time to time.

    Args:
        size: bytes of all units.
        say: sends a part of the answer to the launcher.
    """

    def __init__(self, size: int, say: Say) -> None:
        self._size, self._say = size, say
        self._read, self._tokens = {}, {}  # type: dict[int, int], dict[int, int]
        self._started, self._said = time.monotonic(), 0.0

    @property
    def read(self) -> int:
        """Return the bytes of all units that were read."""
        return sum(self._read.values())

    @property
    def tokens(self) -> int:
        return sum(self._tokens.values())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def begin(self, complete: dict[int, tuple[int, int]]) -> None:
        """Start the clock. `complete`: bytes and tokens of the units that are complete already, by number."""
        self._read = {number: read for number, (read, _) in complete.items()}
        self._tokens = {number: tokens for number, (_, tokens) in complete.items()}
        self._started = time.monotonic()

    def report(self, number: int, read: int, tokens: int) -> None:
        """Record the bytes read and tokens written of a unit."""
        self._read[number], self._tokens[number] = read, tokens
        if time.monotonic() - self._said >= _EVERY:
            self._said = time.monotonic()
            self._say({"progress": (self.read, self._size, self.tokens, self.seconds)})


class _Work:
    """Writes the shards of a plan by several processes."""

    def __init__(
        self,
        query: PrepareQuery,
        plan: Plan,
        sources: Sources,
        selection: Selection,
        template: ChatTemplate | None,
        say: Say,
    ) -> None:
        self._query, self._plan, self._sources, self._selection = query, plan, sources, selection
        self._template, self._say = template, say
        self._folder = Path(query["folder"])
        self._sizes = [sum(piece.size for piece in unit) for unit in plan.units]
        self._progress = _Progress(plan.size, say)
        self._width = 2

    def room(self) -> tuple[int, int]:
        """Return the approximate bytes that are still to be written, and the bytes that are free."""
        read, tokens = self._progress.read, self._progress.tokens
        by_byte = tokens * self._width / read if read else float(self._width)
        return int(by_byte * (self._plan.size - read)), shutil.disk_usage(self._folder).free

    def characters(self) -> Saved:
        """Return the tokenizer of all characters of the sources. Reads all sources for that, unless it was done before."""
        path = self._folder / TOKENIZER
        if path.exists():
            saved: Saved = json.loads(path.read_bytes())
            return saved
        points: set[int] = set()
        self._say({"line": "tokenizer char: reading the sources once to find their characters"})
        self._run(
            range(len(self._plan.units)), self._job(None, 0, ""), lambda _, done: points.update(done["code_points"])
        )
        self._progress.begin({})  # they are read again
        return {"name": "char", "code_points": sorted(points)}

    def finish(self, saved: Saved, eos: int | None) -> PrepareAnswer:
        """Write the missing shards, and complete the folder. Raises UserError, OSError."""
        content = tokenizer_file(saved)
        if not (self._folder / TOKENIZER).exists():
            write_durably(self._folder / TOKENIZER, content)
        vocabulary = _vocabulary(saved, eos)
        dtype = "uint16" if vocabulary <= 1 << 16 else "uint32"
        self._width = np.dtype(dtype).itemsize
        numbers = range(len(self._plan.units))
        records = {number: self._record(number) for number in numbers}
        missing = [number for number in numbers if records[number] is None]
        if len(missing) < len(numbers):
            self._say(
                {
                    "line": f"{len(numbers) - len(missing):,} of {len(numbers):,} parts are there; going on with the others"
                }
            )
        complete_before = {number: record for number, record in records.items() if record is not None}
        for number, record in complete_before.items():
            self._check_strict(number, record)
        self._progress.begin(
            {number: (self._sizes[number], record.tokens) for number, record in complete_before.items()}
        )
        read, written = self._progress.read, self._progress.tokens
        self._remove_temporary()
        self._run(missing, self._job(saved, eos, dtype), lambda number, _: None)
        done = [self._record(number) for number in numbers]
        complete = [record for record in done if record is not None]
        assert len(complete) == len(done)
        bases = self._bases(complete)
        manifest = self._manifest(saved, content, eos, vocabulary, dtype, complete)
        shown_bad = self._bad_lines(complete, bases)
        if not manifest.documents:
            why = f": {shown_bad[0]}" if shown_bad else ""
            bad, empty = (sum(getattr(source, key) for source in manifest.sources) for key in ("bad", "empty"))
            raise UserError(
                f"the sources have no document: {bad:,} bad, {empty:,} empty{why}; correct them, and --overwrite"
            )
        manifest = replace(manifest, shards=self._with_origins(manifest.shards, complete, bases))
        write_manifest(self._folder, manifest)
        seconds = self._progress.seconds
        report = _report(manifest, shown_bad, self._plan.size - read, manifest.tokens - written, seconds, False)
        if self._template is None:
            return report
        pieces = [piece for record in complete for piece in record.pieces]
        answers, left_out = (sum(getattr(piece, key) for piece in pieces) for key in ("answers", "left_out"))
        return replace(report, answers=answers, left_out=left_out)

    def _job(self, saved: Saved | None, eos: int | None, dtype: str) -> Job:
        chat = self._template
        fields: ChatFields | None = None
        if chat is not None:
            fields = {"origin": chat.origin, "templates": chat.templates, "tokens": chat.tokens}
        return {
            "folder": str(self._folder),
            "saved": saved,
            "eos": eos,
            "dtype": dtype,
            "strict": self._query["strict"],
            "column": self._selection.column,
            "template": self._selection.template,
            "chat": fields,
            "pairs": self._selection.pairs,
            "now": self._plan.now,
        }

    def _record(self, number: int) -> ShardRecord | None:
        return complete_shard(self._folder, shard_name(number), self._width, self._selection.chat)

    def _remove_temporary(self) -> None:
        """Remove the temporary files of interrupted processes."""
        for path in (self._folder / WORK).iterdir():
            if path.name.startswith(".") or re.fullmatch(r"\d+\.\w+\.\d+", path.name):
                path.unlink(missing_ok=True)

    def _run(self, numbers: Any, job: Job, on_done: Callable[[int, Done], None]) -> None:
        """Give the units to processes, and wait until all are done. Raises UserError."""

        def done(number: int, unit: Done) -> None:
            self._progress.report(number, self._sizes[number], unit["written"])
            on_done(number, unit)

        orders = ((number, self._order(number)) for number in numbers)
        workers = self._query["workers"] or len(os.sched_getaffinity(0))
        try:
            if len(numbers):
                work_on(orders, job, min(workers, len(numbers)), self._progress.report, done)
        except WorkerError as error:
            raise self._explained(error.unit, error.failure) from None

    def _order(self, number: int) -> Order:
        inputs: list[InputFields] = []
        for piece in self._plan.units[number]:
            file, path = self._sources.files[piece.source], self._sources.paths[piece.source]
            version = None if "://" in file.name else file.version
            fields: PieceFields = {
                "source": piece.source,
                "start": piece.start,
                "end": piece.end,
                "size": piece.size,
                "first": piece.first,
            }
            inputs.append(
                {
                    "piece": fields,
                    "name": file.name,
                    "path": path,
                    "kind": file.kind,
                    "compression": file.compression,
                    "size": file.size,
                    "version": version,
                }
            )
        return {"name": shard_name(number), "inputs": inputs}

    def _explained(self, number: int, failure: Failure) -> Exception:
        """Convert a unit's failure to an error for the user."""
        text = failure["text"]
        if failure["error"] == "read":
            return UserError(text)
        if failure["error"] == "strict":
            piece = self._plan.units[number][failure["piece"]]
            return UserError(f"--strict: {self._place(piece, failure['number'], self._lines_before(piece))}: {text}")
        if failure["error"] == "write":
            return _write_error(self._folder, failure["errno"], text, self.room())
        if failure["error"] == "failed":
            return RuntimeError(text)  # the process has written its traceback
        code = failure["code"]
        if code == -signal.SIGKILL:
            return UserError(
                "a process that wrote a part was ended by signal 9, probably because this machine has no memory left; give "
                "fewer --workers, and the same command goes on: the parts that are complete are kept"
            )
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return UserError(
            f"a process that wrote a part {how}: a file may be damaged, or have become shorter while it was read; the "
            "same command tries again, with --workers 1 in the order of the files"
        )

    def _lines_before(self, piece: Piece) -> int:
        """Return the number of lines or rows before a piece. Counts them if the number is not known."""
        if piece.first is not None or self._sources.files[piece.source].kind != "jsonl":
            return piece.first or 0
        lines, left = 0, piece.start
        with open(self._sources.paths[piece.source], "rb") as file:
            last = b""
            while left > 0 and (block := file.read(min(_BLOCK, left))):
                lines += block.count(b"\n")
                left -= len(block)
                last = block
        return lines + (not last.endswith(b"\n"))

    def _place(self, piece: Piece, number: int, base: int) -> str:
        file = self._sources.files[piece.source]
        if file.kind == "text":
            return shown(file.name)
        return f"{shown(file.name)}, {'line' if file.kind == 'jsonl' else 'row'} {base + number}"

    def _check_strict(self, number: int, record: ShardRecord) -> None:
        if self._query["strict"] and record.bad:
            first = record.bad[0]
            failure: BadLine = {
                "error": "strict",
                "piece": first.piece,
                "number": first.number,
                "text": first.reason,
            }
            raise self._explained(number, failure)

    def _bases(self, records: list[ShardRecord]) -> list[list[int]]:
        """Return, for each piece of each unit, the number of lines or rows that precede it in its file."""
        bases, lines = [], {}  # type: list[list[int]], dict[int, int]
        for unit, record in zip(self._plan.units, records, strict=True):
            row = []
            for piece, facts in zip(unit, record.pieces, strict=True):
                row.append(lines.get(piece.source, 0) if piece.first is None else piece.first)
                lines[piece.source] = row[-1] + facts.lines
            bases.append(row)
        return bases

    def _bad_lines(self, records: list[ShardRecord], bases: list[list[int]]) -> list[str]:
        rows: list[str] = []
        for unit, record, base in zip(self._plan.units, records, bases, strict=True):
            for bad in record.bad[: _BAD_SHOWN - len(rows)]:
                rows.append(f"{self._place(unit[bad.piece], bad.number, base[bad.piece])}: {bad.reason}")
        return rows

    def _with_origins(
        self, shards: list[PreparedShard], records: list[ShardRecord], bases: list[list[int]]
    ) -> list[PreparedShard]:
        """Write the files of origins, in which documents are numbered from the beginning of their source file."""
        complete = []
        for unit, shard, record, base in zip(self._plan.units, shards, records, bases, strict=True):
            target = self._folder / f"{shard.name}.origins"
            origins = np.fromfile(self._folder / WORK / target.name, "<i8").reshape(-1, 2)
            ends = accumulate(facts.documents for facts in record.pieces)
            for piece, facts, first, end in zip(unit, record.pieces, base, ends, strict=True):
                if piece.first is None:
                    origins[end - facts.documents : end, 1] += first
            part = self._folder / WORK / f"{target.name}.0"
            with part.open("wb") as file:
                file.write(origins.tobytes())
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
            complete.append(replace(shard, sha256={**shard.sha256, "origins": file_digest(target)}))
        sync_folder(self._folder)
        return complete

    def _manifest(
        self, saved: Saved, content: bytes, eos: int | None, vocabulary: int, dtype: Any, records: list[ShardRecord]
    ) -> PreparedManifest:
        counts = [[0, 0, 0] for _ in self._plan.sources]
        for unit, record in zip(self._plan.units, records, strict=True):
            for piece, facts in zip(unit, record.pieces, strict=True):
                for place, count in enumerate((facts.documents, facts.bad, facts.empty)):
                    counts[piece.source][place] += count
        arguments = self._plan.arguments
        return PreparedManifest(
            format=FORMAT,
            dtype=dtype,
            vocabulary=vocabulary,
            eos=eos,
            tokenizer=PreparedTokenizer(saved["name"], tokenizer_digest(content)),
            documents=sum(record.documents for record in records),
            tokens=sum(record.tokens for record in records),
            has_answers=self._selection.chat,
            column=arguments.column,
            template=arguments.template,
            sources=[PreparedSource(file.name, *row) for file, row in zip(self._plan.sources, counts, strict=True)],
            shards=[
                PreparedShard(shard_name(number), record.documents, record.tokens, record.sha256)
                for number, record in enumerate(records)
            ],
            pairs=self._selection.pairs,
        )


def _vocabulary(saved: Saved, eos: int | None) -> int:
    if saved["name"] == "bpe":
        return max(BytePairs.from_json(saved["file"]).vocabulary, -1 if eos is None else eos + 1)
    assert eos is not None
    return eos + 1
