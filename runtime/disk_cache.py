"""A cache of compiled programs on disk, on a host or on the launcher's machine: files named by the digest of their inputs.

Loading such a program runs code, so a file is read only if this user has written it, no other user can change it, and it
is undamaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

_DIGEST = hashlib.sha256().digest_size
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return podrun's cache folder, `~/.cache/podrun` or below XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podrun"


class UntrustedError(Exception):
    """A file is damaged, or another user could have changed it. The message says which file, and why."""


class DiskCache:
    """Files in one folder, which only this user may write to, because compiled programs in it are run.

    Args:
        folder: the folder of the files, created at the first write.
        limit: most bytes of all files together; the least recently used files are removed.
    """

    def __init__(self, folder: str | Path, limit: int = 1 << 30) -> None:
        self._folder = Path(folder)
        self._limit = limit

    def read(self, key: str) -> bytes | None:
        """Return the data written under `key`; None if there is none that can be trusted. An untrusted file is removed."""
        path = self._folder / key
        try:
            data = self.load(key)
        except UntrustedError:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def has(self, key: str) -> bool:
        """Return whether there is a file for `key`. It may be damaged."""
        return (self._folder / key).exists()

    def load(self, key: str) -> bytes:
        """Return the data that was written under `key`.

        Raises:
            UntrustedError: the file is damaged, or another user could have changed it.
            OSError: there is no file, or it cannot be read.
        """
        content = read_own_file(self._folder / key)
        data = content[_DIGEST:]
        if hashlib.sha256(data).digest() != content[:_DIGEST]:
            raise UntrustedError(f"{self._folder / key} is damaged")
        return data

    def write(self, key: str, data: bytes) -> None:
        """Write `data` under `key`, as a whole. Without space or permission, do nothing."""
        with contextlib.suppress(OSError):
            self.store(key, data)

    def store(self, key: str, data: bytes) -> None:
        """Write `data` under `key`, as a whole. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room(len(data) + _DIGEST)
        write_whole(self._folder / key, self.sealed(data))

    @staticmethod
    def sealed(data: bytes) -> bytes:
        """Return the content of a file: the digest of `data`, then `data`."""
        return hashlib.sha256(data).digest() + data

    def _make_room(self, size: int) -> None:
        """Remove the least recently used files until `size` more bytes fit.

        Incomplete files of killed processes count as files.
        """
        files = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = size + sum(length for _, length, _ in files)
        for _, length, path in sorted(files):
            if total <= self._limit:
                break
            path.unlink(missing_ok=True)
            total -= length


def read_own_file(path: Path) -> bytes:
    """Return the content of a file that only this user can have written.

    Raises:
        UntrustedError: the file or its folder belongs to another user, others may write it, or it is a link.
        OSError: there is no such file, or it cannot be read.
    """
    _check_own(path.parent, os.stat(path.parent))
    if path.is_symlink():
        raise UntrustedError(f"{path} is a link")
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        _check_own(path, status)
        return file.read()


def _check_own(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UntrustedError(f"{path} belongs to another user")
    if status.st_mode & _OTHERS_WRITE:
        raise UntrustedError(f"other users may write {path} (mode {stat.S_IMODE(status.st_mode):o})")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, readable only by this user, which other processes see whole or not at all. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.replace(file.name, path)
        except OSError:
            with contextlib.suppress(OSError):  # a full disk fails again
                file.close()
            os.unlink(file.name)
            raise
