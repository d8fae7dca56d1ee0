"""What the workers printed: one file per process, byte for byte, so that its size says how much of it is here."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import IO


class Logs:
    """Appends output to `<folder>/<name>.log`. A later attempt of a run goes on in the same file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}

    def write(self, name: str, data: bytes) -> None:
        """Raises OSError if not all of it could be written."""
        if not data:
            return
        if name not in self._files:
            self._files[name] = self._path(name).open("ab+", buffering=0)
        while data:  # a nearly full disk takes a part
            data = data[self._files[name].write(data) :]

    def end(self, name: str) -> None:
        """The process has ended: what it left of a line becomes one."""
        file = self._files.get(name)
        if file is not None and file.seek(0, 2):
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")

    def size(self, name: str) -> int:
        """Bytes that are here."""
        try:
            return self._path(name).stat().st_size
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def __enter__(self) -> Logs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def tail(path: Path, lines: int, limit: int = 16384) -> list[str]:
    """The last lines of a file, without the noise that says nothing about a failure."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - limit))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.startswith("[Gloo] Rank")][-lines:]
