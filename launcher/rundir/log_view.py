"""Print log files line by line, each with the name of its process."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from .log_files import LogFile

_CHUNK = 1 << 18  # bytes of one file that are read in turn
_BAR_EVERY = 2.0  # seconds between two updates of a progress bar
_UP = b"\x1b[A"
"""How tqdm ends each state of a nested bar: with the cursor back in the line of the outer one."""
_PARTIAL = 1 << 20  # bytes of an unfinished line that are kept


def prefixes(files: Sequence[LogFile]) -> dict[str, bytes]:
    """Return a prefix for each file, such as `host | `, all of the same width; empty for a single file."""
    width = max((len(file.name) for file in files), default=0)
    return {file.name: f"{file.name:<{width}} | ".encode() if len(files) > 1 else b"" for file in files}


def visible(line: bytes) -> bytes:
    """Return the final state of a line in a terminal, in which a progress bar overwrites itself."""
    state = line.rstrip(b"\r").rpartition(b"\r")[2]
    while state.endswith(_UP):
        state = state.removesuffix(_UP)
    return state


def is_overwritten(line: bytes) -> bool:
    """Return whether the next lines overwrite this one: it is a state of a progress bar below another one."""
    return line.rstrip(b"\r").endswith(_UP)


def show(
    files: Sequence[LogFile], starts: dict[str, int], ends: dict[str, int], out: IO[bytes], *, raw: bool = False
) -> None:
    """Print all lines between two offsets of each file, in order of arrival with a resolution of one second.

    `raw`: print lines unchanged, instead of the last state of a progress bar.
    """
    prefix = prefixes(files)
    files = [file for file in files if ends[file.name]]
    places = dict(starts)
    for _, number, end in heapq.merge(*(_pieces(i, file, ends[file.name]) for i, file in enumerate(files))):
        file = files[number]
        if end > places[file.name]:
            lines = _Lines(prefix[file.name], out, raw)
            places[file.name] = _copy(file, places[file.name], end, ends[file.name], lines)


def _pieces(number: int, file: LogFile, end: int) -> Iterator[tuple[float, int, int]]:
    """Yield (time, number of the file, end of the piece) for the output of each second."""
    at = 0.0
    for moment, size in file.marks():
        if 0 < size < end:
            yield at, number, size
        at = moment
    yield at, number, end


def _copy(file: LogFile, start: int, end: int, limit: int, out: _Lines) -> int:
    """Write whole lines of a log from `start` until `end` is reached. Returns the offset after the last one."""
    with file.path.open("rb") as source:
        source.seek(start)
        while start < end:
            data = source.read(min(_CHUNK, end - start))
            if not data:
                break
            if not data.endswith(b"\n"):
                data += source.readline(limit - start - len(data))
            start += len(data)
            out.write(data.removesuffix(b"\n").split(b"\n"))
    return start


class _Lines(NamedTuple):
    """Writer for the lines of one process."""

    prefix: bytes
    out: IO[bytes]
    raw: bool

    def write(self, lines: Iterable[bytes]) -> None:
        shown = lines if self.raw else [visible(line) for line in lines if not is_overwritten(line)]
        self.out.write(b"".join([self.prefix + line + b"\n" for line in shown]))


class Follower:
    """Prints new lines of growing files, each exactly once and whole."""

    def __init__(self, files: Sequence[LogFile], starts: dict[str, int], out: IO[bytes], *, raw: bool = False) -> None:
        self._lines = {name: _Lines(prefix, out, raw) for name, prefix in prefixes(files).items()}
        self._raw = raw
        self._files = files
        self._places = dict(starts)
        self._partial: dict[str, bytes] = {}
        self._bars: dict[str, bytes] = {}
        """The unfinished line of each file, as it was last shown."""
        self._wrote: dict[str, float] = {}
        self._out = out

    def show_new(self) -> bool:
        """Print the next new output of each file. Return False if there was none."""
        any_new = False
        for file in self._files:
            if data := self._read(file):
                any_new = True
                self._add(file.name, data)
            if not self._raw:
                self._show_bar(file.name)
        self._out.flush()
        return any_new

    def finish(self) -> None:
        """Print the remaining output, after the end of the run."""
        while self.show_new():
            pass
        for name, partial in self._partial.items():
            if partial and visible(partial) != self._bars.get(name):
                self._write(name, [partial])
        self._out.flush()

    def _read(self, file: LogFile) -> bytes:
        try:
            with file.path.open(
                "rb"
            ) as source:  # not kept open: a pod may have more logs than a process may open files
                source.seek(self._places[file.name])
                data = source.read(_CHUNK)
        except FileNotFoundError:
            return b""
        self._places[file.name] += len(data)
        return data

    def _add(self, name: str, data: bytes) -> None:
        *lines, rest = (self._partial.get(name, b"") + data).split(b"\n")
        # A progress bar may never end its line; only its last states matter.
        self._partial[name] = rest if self._raw or len(rest) < _PARTIAL else rest[-_PARTIAL // 2 :]
        if lines:
            self._bars.pop(name, None)
            self._write(name, lines)

    def _show_bar(self, name: str) -> None:
        """Print the current state of a progress bar, an unfinished line."""
        bar = self._partial.get(name, b"").rpartition(b"\r")[0].rpartition(b"\r")[2]
        bar = visible(bar)
        if bar and bar != self._bars.get(name) and time.monotonic() - self._wrote.get(name, 0.0) > _BAR_EVERY:
            self._bars[name] = bar
            self._write(name, [bar])

    def _write(self, name: str, lines: Iterable[bytes]) -> None:
        self._wrote[name] = time.monotonic()
        self._lines[name].write(lines)
