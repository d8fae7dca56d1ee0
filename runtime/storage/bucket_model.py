"""Read a published model in a bucket by byte ranges: `model.init_from: gs://bucket/folder`.

A process reads the parts of the files that it needs, and nothing is stored on its host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from ..config import Config, bucket_url
from ..contract import UserError
from ..models.pretrained import published_config, with_architecture
from ..models.weight_files import ModelFile, ModelFolder
from .bucket_client import Bucket, BucketError, Stored, explained, is_unreachable

_PIECE = 8 << 20  # bytes per request
_REQUESTS = 4  # concurrent requests


class BucketFile(ModelFile):
    """An object of a bucket."""

    is_remote = True

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket, self._name = bucket, name

    def __str__(self) -> str:
        return f"{self._bucket.url}/{self._name}"

    @cached_property
    def _stored(self) -> Stored | None:
        try:
            return self._bucket.stat(self._name)
        except BucketError as error:
            raise _named(error) from error

    def check_unchanged(self) -> None:
        """Raise UserError if the object was written again since it was opened."""
        before = self._stored
        if before is not None and BucketFile(self._bucket, self._name)._stored != before:
            raise UserError(
                f"model.init_from: {self} was replaced while it was read; start again once nothing writes to "
                f"{self._bucket.url}"
            )

    def size(self) -> int | None:
        return self._stored.size if self._stored else None

    def read(self, start: int, end: int) -> bytes:
        """Return bytes.

        Raises:
            FileNotFoundError: there is no such object.
            UserError: it was replaced since it was opened, or access is refused.
            UnavailableError: the bucket cannot be reached, or sends too few bytes.
        """
        size = self.size()
        if size is None:
            raise FileNotFoundError(0, "there is no such object")
        end = min(end, size)
        if start >= end:
            return b""
        try:
            content = self._bucket.read_part(self._name, start, end)
        except BucketError as error:
            if not is_unreachable(error):
                self.check_unchanged()
            raise _named(error) from error
        if len(content) != end - start:
            self.check_unchanged()
            raise _named(
                BucketError(f"{self}: {len(content):,} bytes arrived of the {end - start:,} from byte {start:,} on")
            )
        return content

    def block(
        self, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], block: tuple[slice, ...]
    ) -> np.ndarray[Any, Any]:
        """Read the rows of a block, a few MB in each request, several at a time; other columns are left out."""
        if not shape:
            return np.frombuffer(self.read(offset, offset + dtype.itemsize), dtype).reshape(())
        first, last, _ = block[0].indices(shape[0]) if block else (0, shape[0], 1)
        width = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        rows = max(1, _PIECE // max(1, width))
        starts = range(first, last, rows)
        others = block[1:]
        parts = [len(range(*one.indices(size))) for one, size in zip(others, shape[1:], strict=False)]
        whole = np.empty((last - first, *parts, *shape[1 + len(parts) :]), dtype)

        def read(start: int) -> tuple[int, bytes]:
            return start, self.read(offset + start * width, offset + min(last, start + rows) * width)

        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="bucket") as pool:
            for start, content in _in_order(pool, read, starts):
                piece = np.frombuffer(content, dtype).reshape(-1, *shape[1:])
                whole[start - first : start - first + len(piece)] = piece[(slice(None), *others)]
        return whole


def _in_order(
    pool: ThreadPoolExecutor, read: Callable[[int], tuple[int, bytes]], starts: range
) -> Iterator[tuple[int, bytes]]:
    """Yield the results of `read`, of which few are in memory at a time. An error ends it before further requests."""
    for at in range(0, len(starts), _REQUESTS):
        yield from pool.map(read, starts[at : at + _REQUESTS])


class BucketModel(ModelFolder):
    """A folder of a bucket."""

    def __init__(self, url: str, note: Callable[[str], None]) -> None:
        """Open the folder, without a request yet. Raises UserError if the package for its kind is missing."""
        self._bucket = Bucket(url, note)
        self._files: dict[str, BucketFile] = {}

    def __str__(self) -> str:
        return self._bucket.url

    def file(self, name: str) -> BucketFile:
        return self._files.setdefault(name, BucketFile(self._bucket, name))

    def check_unchanged(self) -> None:
        for file in self._files.values():
            file.check_unchanged()


def model_in_bucket(config: Config, note: Callable[[str], None] = lambda text: None) -> BucketModel | None:
    """Return the opened folder of the model that a job begins with; None if it is not in a bucket.

    `note` is called with a line for the user when a request is tried again.
    """
    folder = getattr(config.model, "init_from", None)
    url = bucket_url.url(folder) if folder is not None else None
    return None if url is None else BucketModel(url, note)


def with_published(config: Config) -> Config:
    """Return the job with a complete section `model`, as `with_architecture` does. The model may be in a bucket."""
    return with_architecture(config, published_config(config, model_in_bucket(config)))


def _named(error: BucketError) -> Exception:
    return explained(type(error)(f"model.init_from: {error}"))
