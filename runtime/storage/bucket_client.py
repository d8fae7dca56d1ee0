"""Put, get, list and delete objects below one URL, with retries, and one clear error when that cannot help.

What is uploaded and downloaded is compared with the digest that the server states. An object can be written on the
condition that it is absent, or is still a version that was read.
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
_PATIENCE = 60.0  # seconds after which no other try begins
_LONGEST = 16.0  # seconds between two tries; the libraries try several times themselves within each
_DAMAGED = 4  # times that an object is sent or brought whose bytes do not arrive as they were
_ABSENT = ""  # condition of an object that does not exist yet


class Bucket:
    """The objects below one URL, by their names relative to it."""

    def __init__(self, url: str, note: Callable[[str], None] = lambda text: None) -> None:
        """Open it; nothing is asked yet. `note` is told what is tried again.

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
        for _ in range(_DAMAGED):
            self._try("write", name, send)
            item = self.stat(name)
            if item is not None and self._is_as_stated(name, item, digest_of_file(path, item.digest)):
                return
        raise self._damaged("sent", name)

    def put(self, name: str, content: bytes) -> None:
        """Write an object. Raises BucketError."""
        self._write(name, content, None)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object if there is none of that name; return whether it is now this one. Raises BucketError."""
        return self.replace(name, content, _ABSENT) is not None

    def replace(self, name: str, content: bytes, version: str) -> str | None:
        """Write an object if it still is that version; return its version now, None if it was another one.

        Raises BucketError.
        """
        try:
            return self._write(name, content, version)
        except ConditionError:
            now = self.stat(name)  # the answer to an earlier try may have been lost
            return now.version if now is not None and self.read(name) == content else None

    def stat(self, name: str) -> Stored | None:
        """Return what the server states of an object; None if there is none. Raises BucketError."""
        try:
            facts = self._try("read", name, lambda: self._fs.info(self._key(name)))
            return None if facts.get("type") == "directory" else stored(facts)
        except MissingObjectError:
            return None

    def read(self, name: str) -> bytes | None:
        """Return an object's content; None if there is none. Raises BucketError."""
        for _ in range(_DAMAGED):
            item = self.stat(name)
            if item is None:
                return None
            try:
                content = bytes(self._try("read", name, lambda: self._fs.cat_file(self._key(name))))
            except MissingObjectError:
                return None
            if self._is_as_stated(name, item, digest_of_bytes(content)):
                return content
        raise self._damaged("brought", name)

    def read_part(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end` of an object. Raises BucketError."""
        return bytes(self._try("read", name, lambda: self._fs.cat_file(self._key(name), start=start, end=end)))

    def get_file(self, name: str, path: Path, item: Stored | None = None) -> None:
        """Download an object to a file, which appears whole. `item` is what a listing says of it.

        Raises BucketError, and OSError if the file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{hashlib.sha256(path.name.encode()).hexdigest()[:16]}.part")  # any name fits
        item = item or self.stat(name)
        part.unlink(missing_ok=True)  # a link there would be followed
        try:
            for _ in range(_DAMAGED):
                self._try("read", name, lambda: self._fs.get_file(self._key(name), os.fspath(part), **self._one_part))
                if item is None or self.is_intact(name, part, item):
                    part.replace(path)
                    return
        finally:
            part.unlink(missing_ok=True)
        raise self._damaged("brought", name)

    def is_intact(self, name: str, path: Path, item: Stored) -> bool:
        """Return whether a downloaded file has the object's bytes; of one that came in parts, only the size tells."""
        if path.stat().st_size != item.size:
            return False
        if item.digest.startswith("parts:"):
            return True
        return is_same(path, item) or self._is_encrypted(name)

    def objects(self, folder: str = "") -> dict[str, Stored]:
        """Return what the server states of each object below the URL, or a folder there: one listing.

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
        """Delete an object; one that is gone already is no error. Raises BucketError."""
        try:
            self._try("delete", name, lambda: self._fs.rm_file(self._key(name)))
        except MissingObjectError:
            return

    def copy(self, name: str, target: str) -> None:
        """Copy an object to another name, within the bucket. Raises BucketError."""
        self._try("write", target, lambda: self._fs.cp_file(self._key(name), self._key(target)))

    def modified(self, name: str) -> float:
        """Return when an object was written, in seconds since the epoch. Raises BucketError."""
        return float(self._try("read", name, lambda: self._fs.modified(self._key(name))).timestamp())

    def abort_uploads(self) -> None:
        """Forget uploads in parts that were interrupted, which S3 would keep, and charge for, forever."""
        if self._scheme == "s3":
            abort_uploads(self._fs, self._root)

    def _write(self, name: str, content: bytes, version: str | None) -> str:
        """Write an object, on a condition unless `version` is None; return its version. Raises ConditionError."""
        write = write_gs if self._scheme == "gs" else write_s3
        for _ in range(_DAMAGED):
            facts = self._try("write", name, partial(write, self._fs, self._key(name), content, version))
            digest = facts.digest if facts.digest.startswith("md5:") else ""
            if self._is_as_stated(name, facts._replace(digest=digest), digest_of_bytes(content)):
                return str(facts.version)
            version = facts.version if version is not None else None  # the damaged one is this writer's
        raise self._damaged("sent", name)

    def _is_as_stated(self, name: str, item: Stored, digest: str) -> bool:
        return not item.digest or item.digest == digest or self._is_encrypted(name)

    def _is_encrypted(self, name: str) -> bool:
        return self._scheme == "s3" and self._try("read", name, lambda: is_encrypted(self._fs, self._key(name)))

    def _damaged(self, done: str, name: str) -> BucketError:
        what = f"{self.url}/{name} was {done} {_DAMAGED} times, and its bytes never arrived as they were"
        return BucketError(
            f"{what}; something between this host and the bucket changes them: look at its proxy and network"
        )

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _try(self, verb: str, name: str, call: Callable[[], T]) -> T:
        """Return `call()`, tried again with growing pauses, unless what it raises will be the same the next time.

        Raises ConditionError if the object is not what the writer believed.
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
                if attempt == _TRIES or time.monotonic() - started > _PATIENCE:
                    tries = "1 try" if attempt == 1 else f"{attempt} tries"
                    raise BucketError(f"{what} after {tries}: {short(error)}") from error
                if attempt == 1:
                    self._note(f"{what} yet, and tries again: {short(error)}")
                pause = max(
                    random.uniform(0.5, 1) * min(_LONGEST, 0.25 * 2**attempt), min(retry_after(error), _PATIENCE)
                )
            time.sleep(pause)
        raise AssertionError("unreachable")
