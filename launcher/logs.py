"""What the workers printed: one file per host, whole lines, once and in order."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import IO


class HostLogs:
    """Writes output chunks to one file per host. Lines of several processes of a host never mix within a line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._partial: dict[tuple[str, str], bytes] = {}

    def write(self, host: str, stream: str, data: bytes) -> None:
        lines, newline, rest = (self._partial.get((host, stream), b"") + data).rpartition(b"\n")
        self._partial[host, stream] = rest
        self._append(host, lines + newline)

    def end(self, host: str, stream: str) -> None:
        """The process behind `stream` has ended: what it left of a line becomes one."""
        if rest := self._partial.pop((host, stream), b""):
            self._append(host, rest + b"\n")

    def close(self) -> None:
        """Writes the lines that never got their newline."""
        for host, stream in list(self._partial):
            self.end(host, stream)
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _append(self, host: str, data: bytes) -> None:
        if data:
            if host not in self._files:
                self._files[host] = (self._folder / f"{host}.log").open("ab", buffering=0)
            while data:  # a nearly full disk takes a part
                data = data[self._files[host].write(data) :]

    def __enter__(self) -> HostLogs:
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
