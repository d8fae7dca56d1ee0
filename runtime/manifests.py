"""Parse a checkpoint's manifest, which lists its files with sizes and digests.

The agent's file of the same name is a link to this one, so it must run on Python 3.8 with only the standard library.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Dict, Tuple  # noqa: UP035

from .safe_name import as_files

LIMIT = 64 << 20
"""Maximum size of a manifest in bytes."""
Files = Dict[str, Tuple[int, str]]  # noqa: UP006  evaluated at run time by Python 3.8
"""Size in bytes and SHA-256 of each file in a checkpoint, by relative path."""
_ALGORITHM = "sha256"
_DIGEST = re.compile("[0-9a-f]{64}")
_COVERED = ("state/", "frozen/", "meta/")
"""Folders of a checkpoint whose files must all be in the manifest."""


def parse_manifest(data: bytes) -> Files:
    """Parse a manifest: at least one file, and all paths inside the checkpoint.

    Raises ValueError, whose message is a verb phrase about the manifest: `lists no files`, `names a file outside ...`.
    """
    try:
        whole = json.loads(data.decode(), object_pairs_hook=_object)
    except _TwiceError:
        raise
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    listed = whole.get("files") if isinstance(whole, dict) else None
    if not isinstance(listed, dict):
        raise ValueError("has no table of files")
    if whole.get("algorithm", _ALGORITHM) != _ALGORITHM:
        raise ValueError("has no digests of SHA-256")
    if not listed:
        raise ValueError("lists no files")
    refused = as_files(listed)[1]
    if refused:
        raise ValueError(refused[0])
    return {name: _size_and_digest(name, entry) for name, entry in listed.items()}


class _TwiceError(ValueError):
    """A JSON object has a key twice, so that one of the values would be ignored."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _TwiceError("has a name twice")
    return made


def _size_and_digest(name: str, entry: Any) -> tuple[int, str]:
    size, digest = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
    if type(size) is not int or not 0 <= size < 2**63:
        raise ValueError(f"has no size of {name!a}")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"has no SHA-256 of {name!a}")
    return size, digest


def first_unlisted(files: Files, names: Iterable[str]) -> str | None:
    """Return a name of a file of state or metadata that the manifest does not list; None if it lists all."""
    # Network file systems may create hidden files.
    candidates = (name for name in names if name.startswith(_COVERED) and not name.rpartition("/")[2].startswith("."))
    return next((name for name in candidates if name not in files), None)


def files_in(folder: str) -> Iterator[str]:
    """Yield the relative paths of all files in a checkpoint. Raises OSError for a folder that cannot be read."""
    for above, _, names in os.walk(folder, onerror=_raise):
        inner = os.path.relpath(above, folder).replace(os.sep, "/")
        yield from (name if inner == "." else f"{inner}/{name}" for name in names)


def _raise(error: OSError) -> None:
    raise error
