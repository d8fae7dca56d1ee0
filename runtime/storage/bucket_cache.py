"""Files of a bucket on this host: each object once, whichever job asks for it, and folders of links that jobs read.

files/DIGEST       the content of an object, written once; DIGEST.part while it comes
sets/NAME/...      hard links, with the names in the bucket, to what a job has asked for
sets/NAME.lock     locked, shared, by the processes that read the folder
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
from ..safe_name import path_inside
from .bucket_client import Bucket, BucketError, Stored

_PIECE = 8 << 20  # bytes that are asked for at a time ...
_AT_ONCE = 4  # ... by each of so many requests
_TRIES = 3  # times that an object is brought whose bytes do not arrive as they are
_KEEP = 3  # sets that stay although no process reads them
_LEFT = 86400.0  # seconds after which a file goes that no set has
_POLL = 0.5  # seconds

Objects = dict[str, Stored]
"""Objects by their names below the bucket's URL."""
_open: list[int] = []
"""Locks of the sets that this process reads, held until it ends."""


def cache_folder() -> Path:
    """Return the folder on a host for what belongs to no run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podrun"


class BucketCache:
    """The files of this host, for one process."""

    def __init__(self, tell: Callable[[str], None], sign: Callable[[], None]) -> None:
        """Tell the user by `tell` what is brought; call `sign` at each sign of progress."""
        self._root = cache_folder() / "data"
        self._tell, self._sign = tell, sign
        self._told = 0.0

    def folder(self, bucket: Bucket, objects: Objects) -> Path:
        """Return a folder with the objects' files, by their names, which stay as they are while this process lives.

        Raises BucketError, OSError, and UserError if there is no room.
        """
        facts = [bucket.url, *sorted((name, *_identity(bucket, name, item)) for name, item in objects.items())]
        name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]
        folder = self._root / "sets" / name
        for needed in (self._root / "files", folder.parent):
            needed.mkdir(parents=True, exist_ok=True)
        _open.append(os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o644))
        fcntl.flock(_open[-1], fcntl.LOCK_SH)
        if not folder.is_dir():
            self._bring_all(bucket, objects)
            self._link(bucket, objects, folder)
            self._prune()
        os.utime(folder)
        return folder

    def _bring_all(self, bucket: Bucket, objects: Objects) -> None:
        missing = {name: item for name, item in objects.items() if not self._file(bucket, name, item).exists()}
        total = sum(item.size for item in missing.values())
        free = shutil.disk_usage(self._root).free
        if total > free:
            raise UserError(
                f"{bucket.url}: {_megabytes(total)} are to be brought to {self._root}, where {_megabytes(free)} are free; "
                "make room there, or name another folder for caches in XDG_CACHE_HOME"
            )
        done = 0
        for name, item in sorted(missing.items()):
            self._bring(bucket, name, item, done, total)
            done += item.size

    def _bring(self, bucket: Bucket, name: str, item: Stored, before: int, total: int) -> None:
        """Bring an object, from where an earlier process was interrupted, or wait for one that brings it."""
        target = self._file(bucket, name, item)
        part = target.with_suffix(".part")
        with part.open("ab") as file, ThreadPoolExecutor(_AT_ONCE) as pool:
            self._lock(file)
            for _ in range(_TRIES):
                if target.exists():
                    return
                while (size := file.seek(0, os.SEEK_END)) < item.size:
                    starts = range(size, min(item.size, size + _AT_ONCE * _PIECE), _PIECE)
                    ends = [min(start + _PIECE, item.size) for start in starts]
                    for piece in pool.map(lambda a, b: bucket.read_part(name, a, b), starts, ends):
                        file.write(piece)
                        self._sign()
                    file.flush()
                    self._report(bucket, before + file.tell(), total)
                if bucket.is_intact(name, part, item):
                    part.chmod(0o444)
                    part.replace(target)
                    return
                file.truncate(0)
        raise BucketError(
            f"{bucket.url}/{name} was brought {_TRIES} times, and never had the bytes that the bucket states; if it is "
            "being written, wait for its end; else look at the proxy and network between"
        )

    def _lock(self, file: BinaryIO) -> None:
        """Wait until no other process brings this file. Its progress counts as that of this process."""
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
                self._sign()
            before = size
            time.sleep(_POLL)

    def _link(self, bucket: Bucket, objects: Objects, folder: Path) -> None:
        """Make the folder, which appears whole. Another process may be faster."""
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
        """Remove the sets that were used longest ago and that no process reads, and files that no set has."""
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
            if status.st_nlink == 1 and time.time() - status.st_mtime > _LEFT:
                file.unlink(missing_ok=True)

    def _report(self, bucket: Bucket, done: int, total: int) -> None:
        if time.monotonic() - self._told > 10 or done == total:
            self._told = time.monotonic()
            self._tell(f"{_megabytes(done)} of {_megabytes(total)} brought from {bucket.url} to {self._root}")

    def _file(self, bucket: Bucket, name: str, item: Stored) -> Path:
        text = json.dumps(_identity(bucket, name, item))
        return self._root / "files" / hashlib.sha256(text.encode()).hexdigest()[:32]


def _identity(bucket: Bucket, name: str, item: Stored) -> tuple[int, str]:
    """Return size and digest of an object, or what stands for its content if the server states no digest."""
    exact = item.digest and not item.digest.startswith("parts:")
    return item.size, item.digest if exact else f"{bucket.url}/{name} {item.version}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
