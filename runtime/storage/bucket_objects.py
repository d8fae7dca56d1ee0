"""Find the objects that a URL names: one, all below a folder, or the matches of a pattern."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from ..contract import UserError
from ..safe_name import as_files
from .bucket_cache import Objects
from .bucket_client import Bucket


def objects_of(key: str, url: str, note: Callable[[str], None]) -> tuple[Bucket, Objects, str]:
    """Find the objects that a URL names, like `_objects`, whose names can be files. `key` is for messages.

    Raises:
        UserError: there are no objects, or one has a name that cannot be a path.
        OSError: the bucket cannot be read.
    """
    bucket, objects, name = _objects(url, note)
    if not objects:
        raise UserError(f"{key}: no object, folder or match for {url}; correct the URL, or upload the data")
    _check_names(key, bucket, objects)
    return bucket, objects, name


def _objects(url: str, note: Callable[[str], None]) -> tuple[Bucket, Objects, str]:
    """Find the objects that a URL names: one object, all below a folder, or the matches of a glob pattern.

    Returns:
        A folder of the bucket, the objects by their names relative to it, and the URL's path relative to it.
    """
    parts = url.split("/")
    wild = next((n for n, part in enumerate(parts) if n > 2 and any(c in part for c in "*?[")), None)
    if wild is not None:
        bucket, pattern = Bucket("/".join(parts[:wild]), note), parts[wild:]
        matches = {name: item for name, item in bucket.objects().items() if _matches(name.split("/"), pattern)}
        return bucket, _files(matches), "/".join(pattern)
    parent, _, name = url.rpartition("/")
    bucket = Bucket(parent, note)
    item = bucket.stat(name)
    if item is not None:
        return bucket, {name: item}, name
    bucket = Bucket(url, note)
    return bucket, _files(bucket.objects()), ""


def _files(objects: Objects) -> Objects:
    """Return the objects, without the placeholders that web consoles make for folders."""
    return {name: item for name, item in objects.items() if not name.endswith("/")}


def _check_names(key: str, bucket: Bucket, objects: Objects) -> None:
    """Raise UserError if an object's name cannot be a path in a folder: skipping it would train on less data."""
    refused = as_files(objects)[1]
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise UserError(f"{key}: {bucket.url} {refused[0]}{more}; rename it, or name other objects with a pattern")


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Return whether a path matches a glob pattern, both split at slashes; `**` is any number of folders, as in pathlib."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
