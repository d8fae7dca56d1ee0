"""Find the files of a job's data, and compute the digests of changed files."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.contract import UserError
from podrun.runtime.safe_name import why_unsafe
from podrun.runtime.wording import megabytes

from ..agent.prepare.data_set import PIECE
from ..plan.data_set import DataFile, DataKey, DataSet
from .known_digests import forget_unused, known, remember
from .project_files import shown

if TYPE_CHECKING:
    from podrun.runtime.config import Config, NamedFiles

_MOST = 100_000  # files; each is transferred separately
_PAUSE = 5.0  # seconds between two progress lines


def find_data(job: Config, tell: Callable[[str], None] = lambda text: None) -> DataSet:
    """Return the data of a job. Raises UserError for files that are missing, unreadable or too many.

    Files that have not changed are not read. `tell`: called with the progress every few seconds.
    """
    from podrun.runtime.config import files_of  # slow import that user programs do not need

    reading = _Reading(tell)
    keys: list[DataKey] = []
    names: dict[str, str] = {}
    files: dict[str, DataFile] = {}
    for named in files_of(job):
        inside = named.key.removeprefix("data.")
        folder = _folder(named)
        size = 0
        for path in named.files:
            name = path.name if folder is None else os.path.relpath(path, folder)
            if why := _why_it_cannot_travel(f"{inside}/{name}"):
                raise UserError(f"{named.key}: the name of {shown(str(path))} {why}; rename it to copy it to hosts")
            file = _read(path, named.key, reading)
            names[f"{inside}/{name}"] = file.sha256
            files.setdefault(file.sha256, file)
            size += file.size
            if len(names) > _MOST:
                raise UserError(
                    f"{named.key}: {shown(str(named.value))} has more than {_MOST} files; pack them into fewer, as shards"
                )
        value = inside if folder else f"{inside}/{named.files[0].name}"
        keys.append(DataKey(named.key, os.path.abspath(os.path.expanduser(named.value)), value, len(named.files), size))
    forget_unused()
    return DataSet(tuple(keys), tuple(names.items()), tuple(files.values()))


def set_of_files(paths: Iterable[Path]) -> DataSet:
    """Return files, under their own names, as a set of data. Raises UserError for one that cannot be read."""
    files = {path.name: _read(path, path.name, _Reading(lambda text: None)) for path in paths}
    unique = {file.sha256: file for file in files.values()}
    return DataSet((), tuple((name, file.sha256) for name, file in files.items()), tuple(unique.values()))


def _folder(named: NamedFiles) -> Path | None:
    """Return the folder that contains the files; None if the key names a single file."""
    value = Path(named.value).expanduser()
    if value.is_file():
        return None
    parts = value.parts
    wild = next((n for n, part in enumerate(parts) if any(c in part for c in "*?[")), None)
    return value if wild is None or value.is_dir() else Path(*parts[:wild])


def _why_it_cannot_travel(name: str) -> str | None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    return "is too long" if why_unsafe(name, any_characters=True) else None


class _Reading:
    """Reports every few seconds how much has been read."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._read = 0
        self._told = time.monotonic()

    def add(self, size: int) -> None:
        self._read += size
        if time.monotonic() - self._told > _PAUSE:
            self._told = time.monotonic()
            self._tell(f"read {megabytes(self._read)} of the data so far, to name it by its content")


def _read(path: Path, key: str, reading: _Reading) -> DataFile:
    whole = hashlib.sha256()
    pieces: list[str] = []
    size = 0
    try:
        status = path.stat()
        if (file := known(path, status)) is not None:
            return file
        for piece in _pieces(path):
            whole.update(piece)
            pieces.append(hashlib.sha256(piece).hexdigest())
            size += len(piece)
            reading.add(len(piece))
    except OSError as error:
        raise UserError(
            f"{key}: cannot read {shown(str(path))}: {error.strerror}; give this user the right to, or leave it out"
        ) from None
    file = DataFile(str(path.absolute()), whole.hexdigest(), size, tuple(pieces))
    remember(path, status, file)
    return file


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
