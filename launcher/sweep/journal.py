"""The journal of a sweep: each decision is on disk before it is acted on, so that a killed sweep goes on exactly."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podrun.runtime.contract import UserError

from ..agent.base.schema import Malformed
from ..pod.home import private
from .events import Event, parse

JOURNAL = "sweep.jsonl"


def has_begun(folder: Path) -> bool:
    """Return whether the journal in a folder has an event. A line that was cut off is none."""
    path = folder / JOURNAL
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.readline().endswith(b"\n")
    except OSError:  # opening it for writing says why
        return False


class JournalError(Exception):
    """The journal cannot be written, such as on a full disk. What was recorded before stays valid."""


class Journal:
    """An open journal, locked by this process."""

    def __init__(self, path: Path, file: int, events: list[Event], size: int) -> None:
        self._path = path
        self._file = file
        self._size = size  # of the complete lines
        self.events = events
        """The events that it had when it was opened."""

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[Journal]:
        """Open the journal in a folder; create both if they do not exist. A last line that was cut off is dropped.

        Raises:
            UserError: another process has it open, a line is damaged, or the folder is not writable.
        """
        path = folder / JOURNAL
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = private(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise UserError(
                f"cannot write the sweep's journal {path}: {error.strerror}; choose another folder with --workdir DIR"
            ) from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise UserError(f"{path} is not a plain file; choose another folder with --workdir DIR")
            _lock(file, path)
            data = path.read_bytes()
            complete = data[: data.rfind(b"\n") + 1]
            journal = cls(path, file, _events(complete, path), len(complete))
            if len(data) > len(complete):
                os.ftruncate(file, len(complete))
            yield journal
        finally:
            os.close(file)

    def append(self, event: Event) -> None:
        """Write an event to the disk. Raises JournalError; then the journal is as it was before."""
        data = json.dumps(event).encode() + b"\n"
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._size + written)
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise JournalError(f"cannot write the sweep's journal {self._path}: {error.strerror}") from None
        self._size += len(data)

    def close_here(self) -> None:
        """Close the file in a forked process, which would keep the lock otherwise."""
        os.close(self._file)


def _lock(file: int, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError(
            f"another podrun runs the sweep in {path.parent}; wait for its end, or choose another folder with --workdir DIR"
        ) from None


def _events(data: bytes, path: Path) -> list[Event]:
    events = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            events.append(parse(line))
        except Malformed as error:
            raise UserError(
                f"{path}, line {number}: {error}; the journal is damaged, or another version of podrun wrote it: restore "
                "it, or begin a new sweep in another folder with --workdir DIR"
            ) from None
    return events
