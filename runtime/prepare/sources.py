"""Find the files that documents are read from, and check them before work begins: all problems at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..config import bucket_url
from ..contract import UserError
from ..storage.bucket_cache import BucketCache
from ..storage.bucket_client import explained
from ..storage.bucket_objects import objects_of
from ..wording import first_rows
from .documents import ReadError, Selection, columns_of, shown

Kind = Literal["text", "jsonl", "parquet", "arrow"]
_KINDS: dict[str, Kind] = {
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".parquet": "parquet",
    **dict.fromkeys((".arrow", ".feather"), "arrow"),
    **dict.fromkeys((".txt", ".text", ".md", ".markdown", ".rst", ".tex", ".html", ".htm"), "text"),
}
"""Kinds of files by the ends of their names. Files that a folder has and that are not in this table are left out."""
_COMPRESSIONS = (".gz", ".zst")
_STATE, _DICT, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"  # files of datasets.save_to_disk
_SHOWN = 8  # problems that are named


@dataclass(frozen=True)
class SourceFile:
    """A file with documents."""

    name: str
    """Its path below the source as it was given, or its URL."""
    kind: Kind
    compression: str
    """"", ".gz" or ".zst"."""
    size: int
    version: str
    """Changes with the content: the time of the last change, or the bucket's digest."""


@dataclass(frozen=True)
class Sources:
    """The files that a command names, and their paths on this machine."""

    files: list[SourceFile]
    paths: list[str]
    notes: list[str]
    """Lines for the user, such as files that were left out."""


def find_sources(given: list[str], output: Path, selection: Selection, note: Callable[[str], None]) -> Sources:
    """Find and check the files that `given` names.

    Args:
        given: files, folders, glob patterns and URLs of buckets.
        output: the folder to write; its files are never sources.
        selection: columns of the text.
        note: called with a line for the user about each download.

    Raises:
        UserError: with all problems: nothing matches, a file cannot be read or is damaged, a column is missing.
        UnavailableError: a bucket cannot be reached.
    """
    problems: list[str] = []
    files: dict[str, tuple[SourceFile, str]] = {}
    others: dict[str, int] = {}
    twice = written = 0
    inside = f"{os.path.realpath(output)}{os.sep}"
    for source in given:
        try:
            for name, path, version, is_named in _matches(source, note, problems):
                place = os.path.realpath(path)
                if place.startswith(inside):
                    written += 1
                    continue
                kind, compression = _kind(path)
                if selection.chat and kind == "text":
                    kind = None
                if kind is None and not is_named:
                    ending = Path(path).suffix or "no ending"
                    others[ending] = others.get(ending, 0) + 1
                    continue
                twice += place in files
                try:
                    files.setdefault(
                        place, (_checked(name, path, version, kind or "text", compression, selection), path)
                    )
                except ReadError as error:
                    problems.append(str(error))
        except ReadError as error:
            problems.append(str(error))
    if not problems and not files and written:
        problems.append(
            f"no files to read in {', '.join(map(shown, given))} outside of the folder that is to be written, "
            f"{shown(str(output))}; give another one with -o"
        )
    elif not problems and not files:
        left_out = f" (left out: {_counts(others)})" if others else ""
        problems.append(
            f"no files to read in {', '.join(map(shown, given))}{left_out}; files of other endings are read as text if a "
            "pattern names them, for example 'corpus/**/*.py'"
        )
    if selection.chat:
        problems += [
            f"{shown(file.name)} is text; {selection.option} reads conversations from jsonl, Parquet and Arrow files: "
            "leave it out"
            for file, _ in files.values()
            if file.kind == "text"
        ]
    if not problems and (selection.column or selection.template) and all(f.kind == "text" for f, _ in files.values()):
        problems.append(
            "--column and --template are for jsonl, Parquet and Arrow, and all sources are text; leave them out"
        )
    if problems:
        raise UserError("\n".join(first_rows(problems, _SHOWN)))
    notes = [f"left out, because a folder's files of other endings are not read: {_counts(others)}"] if others else []
    notes += [f"{twice} files are named twice, and are read once"] if twice else []
    return Sources([file for file, _ in files.values()], [path for _, path in files.values()], notes)


def _counts(others: dict[str, int]) -> str:
    return ", ".join(f"{count} {shown(ending)}" for ending, count in sorted(others.items()))


def _kind(path: str) -> tuple[Kind | None, str]:
    stem, ending = os.path.splitext(path)
    compression = ending.lower() if ending.lower() in _COMPRESSIONS else ""
    return _KINDS.get(os.path.splitext(stem if compression else path)[1].lower()), compression


_Match = tuple[str, str, str | None, bool]
"""Name, path on this machine, version (None: by the time of the file), and whether a user has named the file itself."""


def _matches(source: str, note: Callable[[str], None], problems: list[str]) -> Iterator[_Match]:
    """Yield the files that one argument names. Raises ReadError if there are none; adds unreadable ones to `problems`."""
    if "://" in source:
        yield from _bucket(source, note)
        return
    path = Path(source)
    try:
        path = path.expanduser()
        if path.is_file():
            yield source, os.fspath(path), None, True
            return
        if path.is_dir():
            yield from _folder(source, path, problems)
            return
        matches = sorted(_glob(path)) if any(c in source for c in "*?[") else []
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise ReadError(f"{shown(source)} cannot be used: {reason}; give a file, a folder or a glob pattern") from None
    if not matches:
        if source == "-" or path.exists():
            raise ReadError(
                f"{shown(source)} is no file that can be read twice, such as a pipe; write it to a file first"
            )
        reason = "is a broken link" if path.is_symlink() else "there is no file, folder or match for it"
        raise ReadError(f"{shown(source)}: {reason} (seen from {Path.cwd()}); give a path that exists")
    for match in matches:
        if match.is_file():
            yield os.fspath(match), os.fspath(match), None, True


def _glob(path: Path) -> Iterator[Path]:
    root = Path(path.anchor) if path.is_absolute() else Path()
    return root.glob(str(path.relative_to(path.anchor)) if path.is_absolute() else str(path))


def _folder(source: str, folder: Path, problems: list[str]) -> Iterator[_Match]:
    """Yield the files below a folder, sorted. Hidden files are not read, and links to folders not followed."""
    splits = folder / _DICT
    if splits.is_file():
        names = _json(splits).get("splits")
        names = names if isinstance(names, list) else []
        raise ReadError(
            f"{shown(source)} has several parts of a data set: {', '.join(map(str, names))}; give those to read, for "
            f"example {shown(os.path.join(source, str(names[0] if names else 'train')))}"
        )
    if (folder / _STATE).is_file() and (folder / _INFO).is_file():
        entries = _json(folder / _STATE).get("_data_files")
        for entry in entries if isinstance(entries, list) else [None]:
            name = entry.get("filename") if isinstance(entry, dict) else None
            if not isinstance(name, str) or name in ("", ".", "..") or os.path.basename(name) != name or "\0" in name:
                raise ReadError(
                    f"{shown(str(folder / _STATE))} is damaged: _data_files has no list of files of this folder; save the "
                    "data set again"
                )
            yield os.path.join(source, name), os.fspath(folder / name), None, False
        return

    def on_error(error: OSError) -> None:
        problems.append(f"cannot read the folder {shown(str(error.filename))}: {error.strerror}")

    for above, folders, names in os.walk(folder, onerror=on_error):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(names):
            path = os.path.join(above, name)
            if name.startswith((".", "_")):
                continue
            if not os.path.exists(path):
                problems.append(f"{shown(path)} is a broken link; repair or remove it")
            elif os.path.isfile(path):
                yield os.path.join(source, os.path.relpath(path, folder)), path, None, False


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ReadError(f"{shown(str(path))} is damaged: it is not a JSON object; save the data set again")
    return content


def _bucket(url: str, note: Callable[[str], None]) -> Iterator[_Match]:
    """Yield the objects that a URL names, downloaded to this host's cache."""
    if mistakes := bucket_url.mistakes(Path(url), "SOURCES", "corpus"):
        raise ReadError("\n".join(map(shown, mistakes)))
    try:
        bucket, objects, name = objects_of("SOURCES", url, note)
        folder = BucketCache(note, lambda: None).folder(bucket, objects)
    except OSError as error:
        raise explained(error) from error
    for key in sorted(objects):
        item = objects[key]
        if not os.path.basename(key).startswith((".", "_")):
            yield f"{bucket.url}/{key}", os.fspath(folder / key), item.digest or item.version, bool(name)


def _checked(
    name: str, path: str, version: str | None, kind: Kind, compression: str, selection: Selection
) -> SourceFile:
    """Check that a file has the columns of the selection, and describe it. Raises ReadError."""
    name = name.encode("utf-8", "backslashreplace").decode()  # a name that is not UTF-8 cannot be in a manifest
    try:
        status = os.stat(path)
        if not os.access(path, os.R_OK):
            raise PermissionError(13, os.strerror(13))
    except OSError as error:
        raise ReadError(f"cannot read {shown(name)}: {error.strerror}") from None
    file = SourceFile(name, kind, compression, status.st_size, version or str(status.st_mtime_ns))
    if kind == "text":
        if os.path.splitext(name.removesuffix(compression))[1].lower() == ".json":
            raise ReadError(
                f"{shown(name)} is one JSON value; if it has an object on each line, name it .jsonl, otherwise convert it"
            )
        return file
    if compression and kind != "jsonl":
        raise ReadError(f"{shown(name)}: Parquet and Arrow files are compressed inside; unpack it first")
    columns = columns_of(name, path, kind, compression)
    if columns is not None:
        selection.check(name, columns)
    return file
