"""The programs that `podrun compile` has made for a job on a slice, as a list beside them. Standard library only.

FOLDER/LIST               the list: a file of JSON, `<digest of the job and the slice>.json`
FOLDER/compiled/KEY       the programs (`disk_cache`); several lists may share some
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from .disk_cache import DiskCache, UntrustedError, read_own_file, write_whole

COMPILED = "compiled"
"""Name of the folder of the programs, beside the lists."""


@dataclass(frozen=True)
class StoredProgram:
    """A compiled program."""

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
    """A program in the answer to a `CompileQuery`."""

    program: StoredProgram
    is_new: bool
    """False if it was there before."""

    @classmethod
    def parse(cls, answer: str) -> list[Made]:
        """Return the programs of an answer."""
        return [cls(StoredProgram(**one["program"]), one["is_new"]) for one in json.loads(answer)]


@dataclass(frozen=True)
class ProgramList:
    """The programs of a job on a slice."""

    slice: str
    built_for: dict[str, str]
    """Versions, devices and flags that they were compiled for and with, by name."""
    programs: tuple[StoredProgram, ...]

    @property
    def bytes(self) -> int:
        return sum(program.bytes for program in self.programs)

    def write(self, path: Path) -> None:
        """Write the list. Raises OSError."""
        write_whole(path, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> ProgramList:
        """Read a list.

        Raises:
            UntrustedError: it is damaged, or another user could have changed it.
            OSError: there is none, or it cannot be read.
        """
        content = read_own_file(path)
        try:
            fields = json.loads(content)
            programs = tuple(StoredProgram(**program) for program in fields["programs"])
            return cls(str(fields["slice"]), dict(fields["built_for"]), programs)
        except (ValueError, TypeError, KeyError) as error:
            raise UntrustedError(f"{path} is damaged: {type(error).__name__}") from None


def compiled_beside(path: Path, limit: int = 1 << 30) -> DiskCache:
    """Return the programs beside a list."""
    return DiskCache(path.parent / COMPILED, limit)
