"""Logs of the workers: one file per process, byte for byte, so that a log's size is the offset in the worker's output.

Indexes in a folder beside them have a line `TIME SIZE` at most once a second: bytes after SIZE arrived after TIME.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from ..pod.errors import IncompleteWriteError
from ..pod.home import private

MARK_EVERY = 1.0  # seconds between two lines of the index


def log_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"


def index_path(folder: Path, name: str) -> Path:
    whole = folder.absolute()
    return whole.with_name(f"{whole.name}-times") / name


def size_of(log: Path) -> int:
    """Return the size of a log in bytes; 0 if it cannot be read."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


class Logs:
    """Appends output to `<folder>/<name>.log`. Later attempts of a run append to the same file.

    Thread-safe if each log is written by one thread.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._marked: dict[str, float] = {}

    def write(self, name: str, data: bytes) -> None:
        """Append output. Raises IncompleteWriteError if a part of it could not be written."""
        if not data:
            return
        try:
            file = self._open(name)
        except OSError as error:
            raise IncompleteWriteError(error, 0) from None
        if time.time() - self._marked.get(name, 0.0) >= MARK_EVERY:
            self._mark(name)
        rest = memoryview(data)
        try:
            while rest:  # a nearly full disk may accept only a part
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise IncompleteWriteError(error, len(data) - len(rest)) from None

    def end(self, name: str) -> None:
        """Complete an unfinished last line of an ended process, even if another supervisor has written it."""
        if self.size(name):
            file = self._open(name)
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")

    def size(self, name: str) -> int:
        """Return the size of a log in bytes."""
        try:
            return log_path(self._folder, name).stat().st_size
        except FileNotFoundError:
            return 0

    def end_of(self, name: str, most: int, start: int = 0) -> bytes:
        """Return the last `most` bytes of a log, without those before offset `start`."""
        try:
            with log_path(self._folder, name).open("rb") as file:
                file.seek(max(start, self.size(name) - most))
                return file.read(most)
        except OSError:
            return b""

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _open(self, name: str) -> IO[bytes]:
        if name not in self._files:
            self._files[name] = open(log_path(self._folder, name), "ab+", buffering=0, opener=private)
        return self._files[name]

    def _mark(self, name: str) -> None:
        self._marked[name] = now = time.time()
        line = f"{now:.3f} {os.fstat(self._files[name].fileno()).st_size}\n"
        try:  # not kept open: the logs alone may use up the limit of open files
            path = index_path(self._folder, name)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(path, "ab", buffering=0, opener=private) as index:
                index.write(line.encode())
        except OSError:
            pass  # a missing index must not fail the run

    def __enter__(self) -> Logs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def tail(path: Path, lines: int, limit: int = 16384) -> list[str]:
    """Return the last lines of a file, without those that never explain a failure."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - limit))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.startswith("[Gloo] Rank")][-lines:]
