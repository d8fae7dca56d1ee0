"""The local folder for downloaded results. Incomplete files are stored apart, and continued by the next download."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.contract import UserError, Workdir
from podrun.runtime.safe_name import UnsafeNameError, path_inside

from ..staging.project_files import PULLED_MARK

if TYPE_CHECKING:
    from .source import IncomingFile

_OURS = PULLED_MARK
_SOURCE = "source.json"
_PARTS = "parts"
_CHUNK = 1 << 20


class DigestError(Exception):
    """A received file has another digest than the host computed."""


class DownloadFolder:
    """The download folder, locked by this process until it is closed."""

    def __init__(self, path: Path, source: str) -> None:
        """Create the folder if necessary, and lock it. Raises UserError if it is not writable or contains anything else.

        `source` says where its content is from, such as `host-0:/runs/train`.
        """
        self.path = path
        self._lock = -1
        remedy = "choose another with --to DIR"
        try:
            self._check(source, remedy)
            self.final(f"{_OURS}/{_PARTS}").mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / _OURS / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (path / _OURS / _SOURCE).write_text(json.dumps({"source": source}))
        except BlockingIOError:
            self.close()
            raise UserError(f"another podrun pull writes to {path} now; wait for it, or {remedy}") from None
        except OSError as error:
            self.close()
            raise UserError(f"cannot write to {path}: {error.strerror}; {remedy}") from None

    def _check(self, source: str, remedy: str) -> None:
        """Raise UserError if the folder contains anything that was not downloaded from `source`."""
        try:
            before = str(json.loads((self.path / _OURS / _SOURCE).read_bytes())["source"])
        except FileNotFoundError:
            if self.path.is_dir() and any(name != _OURS for name in os.listdir(self.path)):
                raise UserError(
                    f"{self.path} is not empty, and its files were not downloaded by podrun pull; {remedy}"
                ) from None
            return
        except (ValueError, KeyError, TypeError):
            before = "somewhere else"
        if before != source:
            raise UserError(f"{self.path} contains results downloaded from {before}, not from {source}; {remedy}")
        if Workdir(self.path).lock.exists():
            raise UserError(f"a run has used {self.path} as its workdir since results were downloaded there; {remedy}")

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def part(self, path: str) -> Path:
        """Return the path of the incomplete file. Raises UserError for a link that could lead elsewhere."""
        return self._below(self.path / _OURS / _PARTS, path)

    def final(self, path: str) -> Path:
        """Return the path of the complete file. Raises UserError for a link that could lead elsewhere."""
        return self._below(self.path, path)

    def _below(self, folder: Path, path: str) -> Path:
        try:
            return Path(path_inside(str(folder), path))
        except UnsafeNameError as error:
            raise UserError(
                f"a downloaded file {error}, in {folder}; remove that link, or choose another folder with --to DIR"
            ) from None

    def is_whole(self, path: str) -> bool:
        """Return True if the complete file exists, without a newer partial download."""
        return self.final(path).is_file() and not self.part(path).exists()

    def size_of(self, path: str) -> int:
        """Return the number of bytes that are present of the complete or the partial file."""
        sizes = [file.stat().st_size for file in (self.part(path), self.final(path)) if file.is_file()]
        return max(sizes, default=0)

    def start_of(self, path: str) -> tuple[int, str]:
        """Return size and SHA-256 of the partial file, or of the complete file if there is no partial one."""
        file = self.part(path) if self.part(path).is_file() else self.final(path)
        return (file.stat().st_size, digest_of(file).hexdigest()) if file.is_file() else (0, "")

    def receive(self, path: str, incoming: IncomingFile, progress: Callable[[int], None]) -> None:
        """Append to a partial file until it is complete. Calls `progress` with the size of each piece.

        Raises DigestError, OSError, and the exceptions of `IncomingFile.pieces`; the partial file remains after these.
        """
        part = self.part(path)
        part.parent.mkdir(parents=True, exist_ok=True)
        if incoming.offset and not part.is_file():
            shutil.copyfile(self.final(path), part)
        if incoming.size - incoming.offset > shutil.disk_usage(part.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(part))
        with part.open("r+b" if incoming.offset else "wb") as file:
            sha = digest_of(part, incoming.offset) if incoming.offset else hashlib.sha256()
            file.seek(incoming.offset)
            file.truncate()
            for data in incoming.pieces():
                file.write(data)
                sha.update(data)
                progress(len(data))
        if sha.hexdigest() != incoming.digest:
            part.unlink()
            raise DigestError(path)

    def place(self, path: str) -> None:
        """Move a partial file or folder to its final name, replacing what is there. Raises OSError."""
        part, final = self.part(path), self.final(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        if not part.is_dir():
            part.replace(final)
            return
        if final.exists():
            before = self.part(f"{path}.before")
            shutil.rmtree(before, ignore_errors=True)
            final.rename(before)
            part.rename(final)
            shutil.rmtree(before, ignore_errors=True)
            return
        part.rename(final)

    def has_links(self) -> bool:
        """Return whether the disk has hard links."""
        link = self.path / _OURS / "link"
        try:
            link.unlink(missing_ok=True)
            os.link(self.path / _OURS / "lock", link)
            link.unlink()
        except OSError:
            return False
        return True

    def drop_part(self, path: str) -> None:
        """Remove a partial file or folder."""
        shutil.rmtree(self.part(path), ignore_errors=True)
        self.part(path).unlink(missing_ok=True)

    def drop_parts(self) -> None:
        """Remove all partial files."""
        shutil.rmtree(self.path / _OURS / _PARTS, ignore_errors=True)


def digest_of(path: Path, size: int | None = None) -> hashlib._Hash:
    """Return the SHA-256 of a file, or of its first `size` bytes. Raises OSError."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_CHUNK if size is None else min(_CHUNK, size)):
            sha.update(data)
            size = None if size is None else size - len(data)
    return sha
