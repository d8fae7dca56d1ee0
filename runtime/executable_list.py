"""The executables (compiled programs) of a job on a slice that `podrun compile` has made, as a list. Standard library only.

FOLDER/LIST               the list: a file of JSON, `<digest of the job and the slice>.json`
FOLDER/compiled/KEY       the executables (`disk_cache`); several lists may share some
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from .disk_cache import DiskCache, UntrustedError, read_own_file, write_whole

COMPILED = "compiled"
"""Name of the folder of the executables, beside the lists."""
_ON_RECORD = "programs"
"""Name of the executables in a list on disk."""


@dataclass(frozen=True)
class StoredExecutable:
    """An executable."""

    name: str
    """What it does: `initialization`, `step` or `evaluation`."""
    key: str
    """Name of its file: a digest of all that it was compiled from."""
    bytes: int
    seconds: float
    """Time that compiling it took."""


class CompileQuery(TypedDict):
    """A query to the process that compiles, as JSON."""

    target: dict[str, object] | None
    """The fields of a `Target`; None: the CPUs of a simulated pod."""
    config: dict[str, object]
    """The fields of the job's `Config`."""
    slice: str
    list: str
    """Path of the list to write."""
    answer: str
    """Path of the file for the answer of a simulated pod."""


@dataclass(frozen=True)
class Made:
    """An executable in the answer to a `CompileQuery`."""

    executable: StoredExecutable
    is_new: bool
    """False if it was there before."""

    @classmethod
    def parse(cls, answer: str) -> list[Made]:
        """Return the executables of an answer."""
        return [cls(StoredExecutable(**one["executable"]), one["is_new"]) for one in json.loads(answer)]


@dataclass(frozen=True)
class ExecutableList:
    """The executables of a job on a slice."""

    slice: str
    built_for: dict[str, str]
    """Versions, devices and flags that they were compiled for and with, by name."""
    executables: tuple[StoredExecutable, ...]

    @property
    def bytes(self) -> int:
        return sum(executable.bytes for executable in self.executables)

    def write(self, path: Path) -> None:
        """Write the list. Raises OSError."""
        executables = [asdict(executable) for executable in self.executables]
        fields = {"slice": self.slice, "built_for": self.built_for, _ON_RECORD: executables}
        write_whole(path, json.dumps(fields, indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> ExecutableList:
        """Read a list.

        Raises:
            UntrustedError: it is damaged, or another user could have changed it.
            OSError: there is none, or it cannot be read.
        """
        content = read_own_file(path)
        try:
            fields = json.loads(content)
            executables = tuple(StoredExecutable(**executable) for executable in fields[_ON_RECORD])
            return cls(str(fields["slice"]), dict(fields["built_for"]), executables)
        except (ValueError, TypeError, KeyError) as error:
            raise UntrustedError(f"{path} is damaged: {type(error).__name__}") from None


def compiled_beside(path: Path, limit: int = 1 << 30) -> DiskCache:
    """Return the executables beside a list."""
    return DiskCache(path.parent / COMPILED, limit)
