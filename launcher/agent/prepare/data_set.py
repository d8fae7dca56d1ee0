"""Files and pieces of a transfer of data to hosts, declared for launcher and agent."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

PIECE = 2 << 20
"""Bytes of a piece; the last one of a file may have fewer."""


class File(NamedTuple):
    """A file, identified by its content."""

    sha256: str
    size: int
    pieces: Tuple[str, ...]
    """The SHA-256 of each piece."""


class Piece(NamedTuple):
    """A part of a file, the unit of a transfer."""

    file: File
    offset: int
    size: int
    sha256: str


def pieces_of(files: List[File]) -> List[Piece]:
    """Return the pieces of all files. A piece's number is its index in this list."""
    return [
        Piece(file, number * PIECE, min(PIECE, file.size - number * PIECE), digest)
        for file in files
        for number, digest in enumerate(file.pieces)
    ]
