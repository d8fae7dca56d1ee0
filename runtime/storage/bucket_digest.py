"""Digests of objects, as servers state them, and the same digests of local files, to verify transfers."""

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
"""Part size of multipart uploads, in bytes. The least that S3 allows, because a part of each concurrent file is in memory.
S3's digest of such an object depends on it."""


class Stored(NamedTuple):
    """Metadata of an object, as the server states it."""

    size: int
    digest: str
    """`md5:`, `crc32c:` or `parts:` (S3's digest of a multipart upload) and the digest; empty if the server states none."""
    version: str
    """Changes whenever the object is written."""
    time: float
    """Time of the last write by the server's clock, in seconds since 1970."""


def stored(facts: dict[str, Any]) -> Stored:
    """Convert the metadata that gcsfs or s3fs returns for an object."""
    if "generation" in facts:
        written = datetime.fromisoformat(str(facts["updated"]).replace("Z", "+00:00")).timestamp()
        digest = f"md5:{base64.b64decode(facts['md5Hash']).hex()}" if facts.get("md5Hash") else ""
        if not digest and facts.get("crc32c"):  # an object composed of others has no MD5
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
    """Return the MD5 of the bytes in base64, as GCS states it."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def digest_of_file(path: Path, like: str) -> str:
    """Return the digest of a file, of the same kind as the digest `like`. Raises OSError."""
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
    """Return whether a file has the size and digest of an object. Raises OSError."""
    return path.is_file() and path.stat().st_size == item.size and digest_of_file(path, item.digest) == item.digest


def _pieces(path: Path, size: int = 1 << 22) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(size):
            yield piece
