"""Files, pieces and frames of a transfer of data to hosts, declared for launcher and agent."""

from __future__ import annotations

import re
from typing import Any, List, NamedTuple, Tuple

from ..base.address import ip
from ..base.message import Frames
from ..base.schema import Malformed, count, each, maybe, port, record, short, table, text

PIECE = 2 << 20
"""Bytes of a piece; the last one of a file may have fewer."""


def peer(value: Any) -> None:
    """Accept an address with a port: 10.0.0.1:2000 or [fd00::1]:2000."""
    text(value)
    host, _, number = value.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", number, re.ASCII):
        raise Malformed("%s, expected an address and a port" % short(value))
    port(int(number))
    ip(host[1:-1] if host[:1] + host[-1:] == "[]" else host)


FROM_BRING: Frames = {
    "store": record({"id": text}),
    "changed": record({"message": text}),
    "holds": record({"missing": count, "total": count, "address": maybe(peer)}),
    "want": record({"pieces": each(count)}),
    "got": record({"bytes": count, "source": text}),
    "note": record({"message": text}),
    "alive": record({}),
    "complete": record({"received": table(count)}),
    "done": record({"pruned": count}),
    "error": record({"what": text, "remedy": text}),
}
"""Frames of `agent bring`, as `agent/prepare/receive_data.py` describes them."""


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
