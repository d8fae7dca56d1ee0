"""Describe data that is brought to hosts: files, the pieces in which they travel, and the frames. Both sides use it."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from .protocol import Frames
from .schema import count, each, maybe, record, table, text

PIECE = 2 << 20
"""Bytes of a piece; the last one of a file may have fewer."""

FROM_BRING: Frames = {
    "store": record({"id": text}),
    "changed": record({"message": text}),
    "holds": record({"missing": count, "total": count, "address": maybe(text)}),
    "want": record({"pieces": each(count)}),
    "got": record({"bytes": count, "source": text}),
    "note": record({"message": text}),
    "alive": record({}),
    "complete": record({"received": table(count)}),
    "done": record({"pruned": count}),
    "error": record({"what": text, "remedy": text}),
}
"""Frames of `agent bring`, as `agent/bring.py` describes them."""


class File(NamedTuple):
    """A file by its content."""

    sha256: str
    size: int
    pieces: Tuple[str, ...]
    """The SHA-256 of each piece."""


class Piece(NamedTuple):
    """A part of a file that travels alone."""

    file: File
    offset: int
    size: int
    sha256: str


def pieces_of(files: List[File]) -> List[Piece]:
    """Return the pieces of all files, in the order that gives them their numbers."""
    return [
        Piece(file, number * PIECE, min(PIECE, file.size - number * PIECE), digest)
        for file in files
        for number, digest in enumerate(file.pieces)
    ]
