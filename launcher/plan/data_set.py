"""Data that is copied to the hosts: the files, their names there, and the job with these paths. PURE."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from podrun.runtime.wording import counted, megabytes

from ..agent.base.places import data_set_folder

if TYPE_CHECKING:
    from podrun.runtime.config import Config


@dataclass(frozen=True)
class DataFile:
    """A file on this machine, and the digests of its pieces."""

    path: str
    """Its absolute path."""
    sha256: str
    size: int
    pieces: tuple[str, ...]
    """SHA-256 of each piece; all but the last have `agent.data_set.PIECE` bytes."""


@dataclass(frozen=True)
class DataKey:
    """A key of the job that names files."""

    key: str
    """Dotted name, such as `data.path`."""
    here: str
    """Its value on this machine."""
    inside: str
    """Path of the same files within the data set."""
    files: int
    size: int


@dataclass(frozen=True)
class DataSet:
    """All data of a job."""

    keys: tuple[DataKey, ...]
    names: tuple[tuple[str, str], ...]
    """Pairs (path within the set, SHA-256 of the file)."""
    files: tuple[DataFile, ...]
    """The files; of several with the same content, only one."""

    @property
    def name(self) -> str:
        """Return the name of the set, a digest of the names and contents of its files."""
        return hashlib.sha256(json.dumps(sorted(self.names)).encode()).hexdigest()[:16]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def folder(self, home: str) -> str:
        """Return the folder of the set on a host."""
        return data_set_folder(home, self.name)

    def render(self, home: str) -> list[str]:
        """Return lines for people: for each key its files, their source and their destination."""
        return [
            f"brings  {key.key}: {counted(key.files, 'file')}, {megabytes(key.size)}, from {key.here} "
            f"to {posixpath.join(self.folder(home), key.inside)}"
            for key in self.keys
        ]

    def on_hosts(self, job: Config, home: str) -> Config:
        """Return the job with the paths of its data replaced by those on the hosts, whose home directory is `home`."""
        for key in self.keys:
            job = _with(job, key.key.split("."), posixpath.join(self.folder(home), key.inside))
        return job

    def on_launcher(self, job: Config) -> Config:
        """Return the job with the paths of its data on the launcher's machine, the opposite of `on_hosts`."""
        for key in self.keys:
            job = _with(job, key.key.split("."), key.here)
        return job


def _with(section: Any, path: Sequence[str], value: str) -> Any:
    """Return a copy of a config section with the value at a path of keys replaced."""
    before = section[path[0]] if isinstance(section, dict) else getattr(section, path[0])
    after: Any = Path(value) if isinstance(before, PurePath) else value
    if len(path) > 1:
        after = _with(before, path[1:], value)
    if isinstance(section, dict):
        return type(section)({**section, path[0]: after})
    return section.model_copy(update={path[0]: after})
