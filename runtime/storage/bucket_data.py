"""Load a job's data. Files in buckets are downloaded to this host's cache first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..config import Config, with_files
from ..config.data import MixtureData, PreparedData
from ..contract import UnavailableError, UserError
from ..data import load_dataset
from ..data.base import Dataset
from ..models.pretrained import TOKENIZER
from .bucket_cache import BucketCache
from .bucket_client import explained
from .bucket_model import model_in_bucket
from .bucket_objects import objects_of


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

    here = _with_tokenizer(with_files(config, download), download, note)
    if not urls:
        return load_dataset(config)
    try:
        return load_dataset(here)
    except UserError as error:
        text = str(error)
        for path, url in urls.items():
            text = text.replace(path, url)
        raise UserError(text) from error


def _with_tokenizer(config: Config, download: Callable[[str, str], Path], note: Callable[[str], None]) -> Config:
    """Return the job with a folder on this host that has the tokenizer of a model in a bucket.

    Prepared data is compared with it. If it cannot be read, the job is returned as it is: a run that is resumed or evaluated
    needs nothing else of the model, and another one fails where it reads the model.
    """
    if not _has_prepared(config):
        return config
    try:
        folder = model_in_bucket(config)
        if folder is None or folder.file(TOKENIZER).size() is None:
            return config
        path = download("model.init_from", f"{folder}/{TOKENIZER}").parent
    except (UserError, UnavailableError) as error:
        note(f"the tokenizer of the data is not compared with the model's: {error}")
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"init_from": path})})


def _has_prepared(config: Config) -> bool:
    """Return whether a source of the job's data, or a set for validation, is a folder of `podrun prepare`."""
    sources = config.data.sources.values() if isinstance(config.data, MixtureData) else [config.data]
    return any(isinstance(section, PreparedData) for section in (*sources, *config.validation.values()))
