"""Cache objects of buckets on this host's disk. All jobs share the files; each job reads a folder of hard links.

files/DIGEST       the content of an object, written once; DIGEST.part during its download
sets/NAME/...      the objects that a job needs, by their names in the bucket, as hard links to files/
sets/NAME.lock     a lock that the processes that read the folder share
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from ..contract import UserError
from ..disk_cache import cache_folder
from ..safe_name import path_inside
from ..wording import megabytes
from .bucket_client import Bucket, BucketError, Stored

_PIECE = 8 << 20  # bytes per request
_REQUESTS = 4  # concurrent requests
_TRIES = 3  # downloads of an object whose checksum does not match
_KEEP = 3  # unused sets to keep
_UNUSED = 86400.0  # seconds after which a file that is in no set is removed
_POLL = 0.5  # seconds

Objects = dict[str, Stored]
"""Objects by their names below the bucket's URL."""
_open: list[int] = []
"""Locks of the sets that this process reads, held until it ends."""


class BucketCache:
    """This host's cache, as used by one process."""

    def __init__(self, note: Callable[[str], None], on_progress: Callable[[], None]) -> None:
        """Open the cache. `note` is called with lines for the user, `on_progress` whenever a download advances."""
        self._root = cache_folder() / "data"
        self._note, self._on_progress = note, on_progress
        self._noted = 0.0

    def folder(self, bucket: Bucket, objects: Objects) -> Path:
        """Return a folder that has the objects as files, by their names. The folder does not change while this process lives.

        Raises BucketError, OSError, and UserError if the disk is too small.
        """
        facts = [bucket.url, *sorted((name, *_identity(bucket, name, item)) for name, item in objects.items())]
        name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]
        folder = self._root / "sets" / name
        for needed in (self._root / "files", folder.parent):
            needed.mkdir(parents=True, exist_ok=True)
        _open.append(os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o644))
        fcntl.flock(_open[-1], fcntl.LOCK_SH)
        if not folder.is_dir():
            self._download_missing(bucket, objects)
            self._link(bucket, objects, folder)
            self._prune()
        os.utime(folder)
        return folder

    def _download_missing(self, bucket: Bucket, objects: Objects) -> None:
        missing = {name: item for name, item in objects.items() if not self._file(bucket, name, item).exists()}
        total = sum(item.size for item in missing.values())
        free = shutil.disk_usage(self._root).free
        if total > free:
            raise UserError(
                f"{bucket.url}: {megabytes(total)} must be downloaded to {self._root}, where {megabytes(free)} are free; "
                "make room there, or name another folder for caches in XDG_CACHE_HOME"
            )
        done = 0
        for name, item in sorted(missing.items()):
            self._download(bucket, name, item, done, total)
            done += item.size

    def _download(self, bucket: Bucket, name: str, item: Stored, before: int, total: int) -> None:
        """Download an object, or wait for a process that does. An interrupted download is continued."""
        target = self._file(bucket, name, item)
        part = target.with_suffix(".part")
        with part.open("ab") as file, ThreadPoolExecutor(_REQUESTS) as pool:
            self._lock(file)
            for _ in range(_TRIES):
                if target.exists():
                    return
                while (size := file.seek(0, os.SEEK_END)) < item.size:
                    starts = range(size, min(item.size, size + _REQUESTS * _PIECE), _PIECE)
                    ends = [min(start + _PIECE, item.size) for start in starts]
                    for piece in pool.map(lambda a, b: bucket.read_part(name, a, b), starts, ends):
                        file.write(piece)
                        self._on_progress()
                    file.flush()
                    self._report(bucket, before + file.tell(), total)
                if bucket.is_intact(name, part, item):
                    part.chmod(0o444)
                    part.replace(target)
                    return
                file.truncate(0)
        raise BucketError(
            f"{bucket.url}/{name} was downloaded {_TRIES} times, and its checksum never matched; if it is being written, "
            "wait until it is complete; otherwise check the proxy and the network"
        )

    def _lock(self, file: BinaryIO) -> None:
        """Wait until no other process downloads this file. Meanwhile, report the other's progress as this process's."""
        before = -1
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    return  # a file system without locks
            size = os.fstat(file.fileno()).st_size
            if size != before:
                self._on_progress()
            before = size
            time.sleep(_POLL)

    def _link(self, bucket: Bucket, objects: Objects, folder: Path) -> None:
        """Make the folder of links. It appears atomically, and another process may make it first."""
        fresh = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        try:
            for name, item in objects.items():
                path = Path(path_inside(str(fresh), name))
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(self._file(bucket, name, item), path)
            fresh.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _prune(self) -> None:
        """Remove the least recently used sets that no process reads, and old files that are in no set."""
        sets = sorted((p for p in (self._root / "sets").iterdir() if p.is_dir()), key=lambda p: -p.stat().st_mtime)
        for folder in sets[_KEEP:]:
            with folder.with_suffix(".lock").open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                shutil.rmtree(folder, ignore_errors=True)
        for file in (self._root / "files").iterdir():
            status = file.stat()
            if status.st_nlink == 1 and time.time() - status.st_mtime > _UNUSED:
                file.unlink(missing_ok=True)

    def _report(self, bucket: Bucket, done: int, total: int) -> None:
        if time.monotonic() - self._noted > 10 or done == total:
            self._noted = time.monotonic()
            self._note(f"{megabytes(done)} of {megabytes(total)} downloaded from {bucket.url} to {self._root}")

    def _file(self, bucket: Bucket, name: str, item: Stored) -> Path:
        text = json.dumps(_identity(bucket, name, item))
        return self._root / "files" / hashlib.sha256(text.encode()).hexdigest()[:32]


def _identity(bucket: Bucket, name: str, item: Stored) -> tuple[int, str]:
    """Return the size and digest of an object.

    If the server states no digest, its name and version take the digest's place.
    """
    exact = item.digest and not item.digest.startswith("parts:")
    return item.size, item.digest if exact else f"{bucket.url}/{name} {item.version}"
