"""Find the files of this machine that a job's data names, and read their content once, to name them by it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from podrun.runtime.config import Config, NamedFiles, files_of
from podrun.runtime.contract import UserError

from ..agent.data_set import PIECE
from ..plan.data_set import DataFile, DataKey, DataSet
from .project_files import shown

_MOST = 100_000  # files; each travels alone


def find_data(job: Config) -> DataSet:
    """Return the data of a job. Raises UserError for files that are missing, cannot be read, or are too many."""
    keys: list[DataKey] = []
    names: dict[str, str] = {}
    files: dict[str, DataFile] = {}
    for named in files_of(job):
        inside = named.key.partition(".")[2]
        folder = _folder(named)
        size = 0
        for path in named.files:
            name = path.name if folder is None else os.path.relpath(path, folder)
            if not _can_travel(name):
                raise UserError(
                    f"{named.key}: the name of {shown(str(path))} is not UTF-8; rename it to bring it to hosts"
                )
            file = _read(path, named.key)
            names[f"{inside}/{name}"] = file.sha256
            files.setdefault(file.sha256, file)
            size += file.size
            if len(names) > _MOST:
                raise UserError(
                    f"{named.key}: {shown(str(named.value))} has more than {_MOST} files; pack them into fewer, as shards"
                )
        value = inside if folder else f"{inside}/{named.files[0].name}"
        keys.append(DataKey(named.key, os.path.abspath(os.path.expanduser(named.value)), value, len(named.files), size))
    return DataSet(tuple(keys), tuple(names.items()), tuple(files.values()))


def _folder(named: NamedFiles) -> Path | None:
    """Return the folder that the files are named in; None if the key names one file itself."""
    value = Path(named.value).expanduser()
    if value.is_file():
        return None
    parts = value.parts
    wild = next((n for n, part in enumerate(parts) if any(c in part for c in "*?[")), None)
    return value if wild is None or value.is_dir() else Path(*parts[:wild])


def _can_travel(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(path: Path, key: str) -> DataFile:
    whole = hashlib.sha256()
    pieces: list[str] = []
    size = 0
    try:
        for piece in _pieces(path):
            whole.update(piece)
            pieces.append(hashlib.sha256(piece).hexdigest())
            size += len(piece)
    except OSError as error:
        raise UserError(
            f"{key}: cannot read {shown(str(path))}: {error.strerror}; give this user the right to, or leave it out"
        ) from None
    return DataFile(str(path.absolute()), whole.hexdigest(), size, tuple(pieces))


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
