"""Digests of objects: what the server states of the bytes that it has, to compare with those of a file."""

from __future__ import annotations

import base64
import hashlib
import importlib
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

PART = 5 << 20
"""Bytes of the parts in which a large file is uploaded, the fewest that S3 takes: of several files at once, a whole one is in
memory. S3's digest of such an object depends on it."""


class Stored(NamedTuple):
    """An object as the server states it."""

    size: int
    digest: str
    """`md5:`, `crc32c:` or `parts:` and the digest; empty if the server states none."""
    version: str
    """Changes whenever the object is written."""
    time: float
    """When it was written, by the server's clock."""


def stored(facts: dict[str, Any]) -> Stored:
    """Return what gcsfs or s3fs says of an object."""
    if "generation" in facts:
        written = datetime.fromisoformat(str(facts["updated"]).replace("Z", "+00:00")).timestamp()
        digest = f"md5:{base64.b64decode(facts['md5Hash']).hex()}" if facts.get("md5Hash") else ""
        if not digest and facts.get("crc32c"):  # of an object that the server composed of others
            digest = f"crc32c:{base64.b64decode(facts['crc32c']).hex()}"
        return Stored(int(facts["size"]), digest, str(facts["generation"]), written)
    etag = str(facts.get("ETag", "")).strip('"')
    kind = "md5" if re.fullmatch("[0-9a-f]{32}", etag) else "parts" if "-" in etag else ""
    modified = facts.get("LastModified")
    written = modified.timestamp() if isinstance(modified, datetime) else 0.0
    return Stored(int(facts.get("size") or 0), f"{kind}:{etag}" if kind else "", etag, written)


def digest_of_bytes(content: bytes) -> str:
    return f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"


def base64_digest(content: bytes) -> str:
    """Return the MD5 of bytes as GCS writes it."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def digest_of_file(path: Path, like: str) -> str:
    """Return the digest of a file in the form of `like`, as if podrun had uploaded it. Raises OSError."""
    kind = like.partition(":")[0]
    if kind == "crc32c":
        checksum = importlib.import_module("google_crc32c").Checksum()
        for piece in _pieces(path):
            checksum.update(piece)
        return f"crc32c:{checksum.hexdigest().decode()}"
    if kind == "parts":
        parts = [hashlib.md5(piece, usedforsecurity=False).digest() for piece in _pieces(path, PART)]
        return f"parts:{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"
    if not kind:
        return ""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in _pieces(path):
        digest.update(piece)
    return f"md5:{digest.hexdigest()}"


def is_same(path: Path, item: Stored) -> bool:
    """Return whether a file has the bytes of an object, as far as size and digest tell. Raises OSError."""
    return path.is_file() and path.stat().st_size == item.size and digest_of_file(path, item.digest) == item.digest


def _pieces(path: Path, size: int = 1 << 22) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(size):
            yield piece
