"""Load a job's data, of which files may be in buckets: those are brought to this host first."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

from ..config import Config, with_files
from ..contract import UserError
from ..data import load_dataset
from ..data.base import Dataset
from ..safe_name import as_files
from .bucket_cache import BucketCache, Objects
from .bucket_client import Bucket, explained


def load_data(
    config: Config, tell: Callable[[str], None] | None = None, sign: Callable[[], None] | None = None
) -> Dataset:
    """Return the data that the job trains on.

    Raises UserError if it is not there, or is not usable; UnavailableError if the bucket cannot be reached.

    Args:
        config: the job.
        tell: told what is brought from a bucket.
        sign: called at each sign of progress.
    """
    tell, sign = tell or (lambda text: None), sign or (lambda: None)
    cache = BucketCache(tell, sign)
    urls: dict[str, str] = {}

    def bring(key: str, url: str) -> Path:
        try:
            bucket, objects, name = _objects(url, tell)
            if not objects:
                raise UserError(f"{key}: there is no object, folder or match for {url}; correct it, or upload the data")
            _check_names(key, bucket, objects)
            path = cache.folder(bucket, objects) / name
        except OSError as error:
            raise explained(type(error)(f"{key}: {error}")) from error
        urls[str(path)] = url
        return path

    section = with_files(config.data, bring)
    if not urls:
        return load_dataset(config)
    try:
        return load_dataset(config.model_copy(update={"data": section}))
    except UserError as error:
        text = str(error)
        for path, url in urls.items():
            text = text.replace(path, url)
        raise UserError(text) from error


def _objects(url: str, tell: Callable[[str], None]) -> tuple[Bucket, Objects, str]:
    """Return a bucket, the objects there that a URL names, and which path below the bucket's the URL is."""
    parts = url.split("/")
    wild = next((n for n, part in enumerate(parts) if n > 2 and any(c in part for c in "*?[")), None)
    if wild is not None:
        bucket, pattern = Bucket("/".join(parts[:wild]), tell), parts[wild:]
        matches = {name: item for name, item in bucket.objects().items() if _matches(name.split("/"), pattern)}
        return bucket, _files(matches), "/".join(pattern)
    parent, _, name = url.rpartition("/")
    bucket = Bucket(parent, tell)
    item = bucket.stat(name)
    if item is not None:
        return bucket, {name: item}, name
    bucket = Bucket(url, tell)
    return bucket, _files(bucket.objects()), ""


def _files(objects: Objects) -> Objects:
    """Return the objects without the marks of folders that consoles make."""
    return {name: item for name, item in objects.items() if not name.endswith("/")}


def _check_names(key: str, bucket: Bucket, objects: Objects) -> None:
    """Raise UserError for objects that cannot be files of one folder: without them the job would train on less."""
    refused = as_files(objects)[1]
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise UserError(f"{key}: {bucket.url} {refused[0]}{more}; rename it, or name other objects with a pattern")


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Return whether a path matches a glob pattern, as pathlib's does."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
