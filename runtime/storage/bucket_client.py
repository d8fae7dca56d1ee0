"""Put, get, list and delete the objects below one URL. Transient errors are retried; others become one clear BucketError.

Whole objects are verified against the digest that the server states; parts (`read_part`) are not. A write can have the
condition that the object is absent, or still has a version that was read.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .bucket_digest import PART, Stored, digest_of_bytes, digest_of_file, is_same, stored
from .bucket_errors import (
    BucketError,
    ConditionError,
    MissingObjectError,
    RefusedError,
    explained,
    fatal_error,
    is_condition,
    is_local,
    is_unreachable,
    retry_after,
    short,
)
from .bucket_library import SERVER, abort_uploads, is_encrypted, open_library, write_gs, write_s3

__all__ = ["Bucket", "BucketError", "MissingObjectError", "RefusedError", "Stored", "explained", "is_unreachable"]

T = TypeVar("T")

_TRIES = 6
_RETRY_SECONDS = 60.0  # no retry begins later
_LONGEST = 16.0  # most seconds between two tries; the libraries retry several times themselves within each
_TRANSFERS = 4  # transfers of an object whose checksum does not match


class Bucket:
    """The objects below one URL, by their names relative to it."""

    def __init__(self, url: str, note: Callable[[str], None] = lambda text: None) -> None:
        """Open the URL, without a request yet. `note` is called with a line for the user when a request is retried.

        Raises UserError if the package for its kind is missing.
        """
        self.url = url.rstrip("/")
        self._note = note
        self._scheme, _, self._root = self.url.partition("://")
        self._fs: Any = open_library(self.url)
        # s3fs alone would hold ten parts of a file in memory; several files at once are as fast.
        self._one_part = {"max_concurrency": 1} if self._scheme == "s3" else {}

    def put_file(self, name: str, path: Path) -> None:
        """Upload a file. Raises BucketError; OSError if the file cannot be read."""
        if path.stat().st_size < PART:
            self.put(name, path.read_bytes())
            return
        send = partial(self._fs.put_file, os.fspath(path), self._key(name), chunksize=PART, **self._one_part)
        for _ in range(_TRANSFERS):
            self._try("write", name, send)
            item = self.stat(name)
            if item is not None and self._is_as_stated(name, item, digest_of_file(path, item.digest)):
                return
        raise self._damaged("uploaded", name)

    def put(self, name: str, content: bytes) -> None:
        """Write an object. Raises BucketError."""
        self._write(name, content, None)

    def replace(self, name: str, content: bytes, version: str) -> str | None:
        """Write an object if its current version is `version`; "" means that the object must not exist.

        Return the new version; None if the current version is another one.

        Raises BucketError.
        """
        try:
            return self._write(name, content, version)
        except ConditionError:
            now = self.stat(name)  # an earlier try may have written it, with its response lost
            return now.version if now is not None and self.read(name) == content else None

    def stat(self, name: str) -> Stored | None:
        """Return an object's size, digest, version and time; None if it does not exist. Raises BucketError."""
        try:
            facts = self._try("read", name, lambda: self._fs.info(self._key(name)))
            return None if facts.get("type") == "directory" else stored(facts)
        except MissingObjectError:
            return None

    def read(self, name: str) -> bytes | None:
        """Return an object's content; None if it does not exist. Raises BucketError."""
        for _ in range(_TRANSFERS):
            item = self.stat(name)
            if item is None:
                return None
            try:
                content = bytes(self._try("read", name, lambda: self._fs.cat_file(self._key(name))))
            except MissingObjectError:
                return None
            if self._is_as_stated(name, item, digest_of_bytes(content)):
                return content
        raise self._damaged("downloaded", name)

    def read_part(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes `start` to `end`, exclusive, of an object. Raises BucketError."""
        return bytes(self._try("read", name, lambda: self._fs.cat_file(self._key(name), start=start, end=end)))

    def get_file(self, name: str, path: Path, item: Stored | None = None) -> None:
        """Download an object to `path`, atomically. `item` is its entry in a listing, which saves a request.

        Raises BucketError, and OSError if the file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(
            f".{hashlib.sha256(path.name.encode()).hexdigest()[:16]}.part"
        )  # the name may be too long for a suffix
        item = item or self.stat(name)
        part.unlink(missing_ok=True)  # it may be a link, which would be followed
        try:
            for _ in range(_TRANSFERS):
                self._try("read", name, lambda: self._fs.get_file(self._key(name), os.fspath(part), **self._one_part))
                if item is None or self.is_intact(name, part, item):
                    part.replace(path)
                    return
        finally:
            part.unlink(missing_ok=True)
        raise self._damaged("downloaded", name)

    def is_intact(self, name: str, path: Path, item: Stored) -> bool:
        """Return whether a downloaded file matches the object. An object uploaded in parts is compared by size only."""
        if path.stat().st_size != item.size:
            return False
        if item.digest.startswith("parts:"):
            return True
        return is_same(path, item) or self._is_encrypted(name)

    def objects(self, folder: str = "") -> dict[str, Stored]:
        """List the objects below the URL, or below a folder there, by name relative to the URL.

        Raises BucketError.
        """
        try:
            below = f"{self._root}/{folder}".rstrip("/")
            objects = self._try("list", folder, lambda: self._fs.find(below, detail=True))
        except MissingObjectError:
            return {}
        start = f"{self._root}/"
        return {
            name.removeprefix(start): stored(facts)
            for name, facts in objects.items()
            if name.startswith(start) and name != start
        }

    def sizes(self) -> dict[str, int]:
        """Return the size of every object below the URL, by name. Raises BucketError."""
        return {name: item.size for name, item in self.objects().items()}

    def delete(self, name: str) -> None:
        """Delete an object, if it exists. Raises BucketError."""
        try:
            self._try("delete", name, lambda: self._fs.rm_file(self._key(name)))
        except MissingObjectError:
            return

    def copy(self, name: str, target: str) -> None:
        """Copy an object to another name, within the bucket. Raises BucketError."""
        try:
            self._try("write", target, lambda: self._fs.cp_file(self._key(name), self._key(target)))
        except ConditionError:  # S3's NoSuchKey
            raise MissingObjectError(f"{self.url}/{name}: no such object") from None

    def modified(self, name: str) -> float:
        """Return the time when an object was written, in seconds since 1970. Raises BucketError."""
        return float(self._try("read", name, lambda: self._fs.modified(self._key(name))).timestamp())

    def abort_uploads(self) -> None:
        """Abort interrupted multipart uploads, which S3 would keep, and charge for, indefinitely."""
        if self._scheme == "s3":
            abort_uploads(self._fs, self._root)

    def _write(self, name: str, content: bytes, version: str | None) -> str:
        """Write an object, verified, and return its new version. Raises ConditionError unless it had `version`; None: any."""
        write = write_gs if self._scheme == "gs" else write_s3
        for _ in range(_TRANSFERS):
            facts = self._try("write", name, partial(write, self._fs, self._key(name), content, version))
            digest = facts.digest if facts.digest.startswith("md5:") else ""
            if self._is_as_stated(name, facts._replace(digest=digest), digest_of_bytes(content)):
                return str(facts.version)
            version = facts.version if version is not None else None  # the damaged object was written here
        raise self._damaged("uploaded", name)

    def _is_as_stated(self, name: str, item: Stored, digest: str) -> bool:
        return not item.digest or item.digest == digest or self._is_encrypted(name)

    def _is_encrypted(self, name: str) -> bool:
        return self._scheme == "s3" and self._try("read", name, lambda: is_encrypted(self._fs, self._key(name)))

    def _damaged(self, done: str, name: str) -> BucketError:
        return BucketError(
            f"{self.url}/{name} was {done} {_TRANSFERS} times, and its checksum never matched; something between this host "
            "and the bucket changes the bytes: check the proxy and the network"
        )

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _try(self, verb: str, name: str, call: Callable[[], T]) -> T:
        """Return `call()`, retried with exponential backoff after transient errors.

        Raises:
            BucketError: a permanent error, or the last of the tries failed.
            ConditionError: the condition of a write does not hold.
            OSError: an error of this host's disk.
        """
        started = time.monotonic()
        for attempt in range(1, _TRIES + 1):
            try:
                return call()
            except Exception as error:
                if is_local(error):
                    raise
                if verb == "write" and is_condition(error):
                    raise ConditionError from error
                fatal = fatal_error(self.url, error, verb, name, attempt)
                if fatal is not None:
                    raise fatal from error
                server = os.environ.get(SERVER[self._scheme])
                what = f"{self.url}: cannot {verb} {name or 'it'}{f' on the server {server}' if server else ''}"
                if attempt == _TRIES or time.monotonic() - started > _RETRY_SECONDS:
                    tries = "1 try" if attempt == 1 else f"{attempt} tries"
                    raise BucketError(f"{what} after {tries}: {short(error)}") from error
                if attempt == 1:
                    self._note(f"{what} yet; retrying: {short(error)}")
                pause = max(
                    random.uniform(0.5, 1) * min(_LONGEST, 0.25 * 2**attempt), min(retry_after(error), _RETRY_SECONDS)
                )
            time.sleep(pause)
        raise AssertionError("unreachable")
