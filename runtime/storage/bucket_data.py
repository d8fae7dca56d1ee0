"""Load a job's data. Files in buckets are downloaded to this host's cache first."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

from ..config import Config, with_files
from ..contract import UserError
from ..data import load_dataset
from ..data.base import Dataset
from ..models.pretrained import TOKENIZER
from ..safe_name import as_files
from .bucket_cache import BucketCache, Objects
from .bucket_client import Bucket, explained
from .bucket_model import model_in_bucket


def load_data(
    config: Config, note: Callable[[str], None] | None = None, on_progress: Callable[[], None] | None = None
) -> Dataset:
    """Return the data that the job trains on.

    Args:
        config: the job.
        note: called with a line for the user about each download.
        on_progress: called whenever a download advances.

    Raises:
        UserError: the data is missing or cannot be used.
        UnavailableError: the bucket cannot be reached.
    """
    note, on_progress = note or (lambda text: None), on_progress or (lambda: None)
    cache = BucketCache(note, on_progress)
    urls: dict[str, str] = {}

    def download(key: str, url: str) -> Path:
        try:
            bucket, objects, name = objects_of(key, url, note)
            path = cache.folder(bucket, objects) / name
        except OSError as error:
            raise explained(type(error)(f"{key}: {error}")) from error
        urls[str(path)] = url
        return path

    here = _with_tokenizer(with_files(config, download), download)
    if not urls:
        return load_dataset(config)
    try:
        return load_dataset(here)
    except UserError as error:
        text = str(error)
        for path, url in urls.items():
            text = text.replace(path, url)
        raise UserError(text) from error


def _with_tokenizer(config: Config, download: Callable[[str, str], Path]) -> Config:
    """Return the job with a folder on this host that has the tokenizer of a model in a bucket: data is compared with it."""
    folder = model_in_bucket(config)
    if folder is None or folder.file(TOKENIZER).size() is None:
        return config
    path = download("model.init_from", f"{folder}/{TOKENIZER}").parent
    return config.model_copy(update={"model": config.model.model_copy(update={"init_from": path})})


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
