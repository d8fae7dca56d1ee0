"""Read a file from its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 16
_LONGEST = 16 << 20  # bytes of a line


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield the complete lines without line ends, the last one first; nothing if there is no file. Reads only as needed."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        at = file.seek(0, 2)
        rest = b""  # the end of a line whose start has not been read yet
        whole = False  # false while `rest` belongs to an unfinished last line
        while at:
            size = min(_BLOCK, at)
            at = file.seek(at - size)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            if len(rest) > _LONGEST:  # longer than any valid line, so the rest of it is useless as well
                rest = b""
            if lines and not whole:
                whole = True
                lines.pop()
            yield from reversed(lines)
        if whole:
            yield rest


def tail_offset(path: Path, lines: int, end: int) -> int:
    """Return the offset of the last `lines` lines in the first `end` bytes. An unfinished last line counts as a line."""
    with path.open("rb") as file:
        at, newlines = end, lines
        if end and lines:
            file.seek(end - 1)
            newlines += file.read(1) == b"\n"
        while at and lines:
            size = min(_BLOCK, at)
            at = file.seek(at - size)
            data = file.read(size)
            count = data.count(b"\n")
            if count >= newlines:
                place = len(data)
                for _ in range(newlines):
                    place = data.rindex(b"\n", 0, place)
                return at + place + 1
            newlines -= count
    return 0 if lines else end


def line_offset(path: Path, at: int) -> int:
    """Return the offset of the line that contains the byte at `at`."""
    with path.open("rb") as file:
        file.seek(max(0, at - 1))
        return at if at == 0 or file.read(1) == b"\n" else tail_offset(path, 1, at)
