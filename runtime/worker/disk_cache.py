"""Cache files on this host by the digest of what they were made from, such as compiled programs.

They only save time: a file that is damaged or cannot be read is none, and one that cannot be written is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

_DIGEST = hashlib.sha256().digest_size


class DiskCache:
    """Files in one folder, which only this user may write to: what is read here is run.

    Args:
        folder: where they are; made when it is needed.
        limit: bytes of all files together; the ones not used for longest are removed.
    """

    def __init__(self, folder: str | Path, limit: int = 1 << 30) -> None:
        self._folder = Path(folder)
        self._limit = limit

    def read(self, key: str) -> bytes | None:
        """Return what was written; None if there is nothing, or if it is damaged."""
        path = self._folder / key
        try:
            content = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        data = content[_DIGEST:]
        if hashlib.sha256(data).digest() != content[:_DIGEST]:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return data

    def write(self, key: str, data: bytes) -> None:
        """Write a whole file or none."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(len(data) + _DIGEST)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".new-", delete=False) as file:
                try:
                    file.write(self.sealed(data))
                    file.close()
                    os.replace(file.name, self._folder / key)
                except OSError:
                    os.unlink(file.name)
        except OSError:
            pass

    @staticmethod
    def sealed(data: bytes) -> bytes:
        """Return the content of a file with `data`."""
        return hashlib.sha256(data).digest() + data

    def _make_room(self, size: int) -> None:
        """Remove the files not used for longest, until `size` more bytes fit; also what a process left that was killed."""
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
