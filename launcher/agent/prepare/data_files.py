"""Store data on this host: files named by their digest, and data sets, folders of hard links with the files' names.

home/data/files/SHA256         a complete file; its modification time is VERIFIED unless it was changed after its check
home/data/files/SHA256.part    a file of which some pieces have arrived
home/data/sets/HASH/           the files of one job under their names, as hard links

A piece is present if its bytes have its digest, so an interrupted transfer resumes without any other record.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from typing import Any, Callable, Dict, List, Set

from ..base.disk import check_space
from ..base.places import DATA, DATA_FILES, DATA_SETS, data_folder, data_set_folder
from ..base.private import is_private, private_path
from ..base.problem import Problem
from ..base.safe_name import why_unsafe
from .data_set import File, Piece, pieces_of
from .named_data import Names, is_complete, make_set
from .store import beside, flush

VERIFIED = 0
"""Modification time of a verified file. Any write changes it."""
_LOCK_LIMIT = 1800.0  # seconds to wait for another run's transfer to this host
_BLOCK = 1 << 20


def store_id(home: str) -> str:
    """Return the id of the store, which hosts that share a home have in common."""
    path = os.path.join(private_path(home, DATA), "id")
    for _ in range(2):
        try:
            with open(path) as file:
                return file.read().strip()
        except FileNotFoundError:
            new = beside(path, "new")
            with open(new, "w") as file:
                file.write(os.urandom(16).hex())
            try:
                os.link(new, path)  # fails if another host was faster
            except FileExistsError:
                pass
            finally:
                os.unlink(new)
    raise Problem("%s cannot be read" % path, "remove it")


class DigestError(Exception):
    """A piece has arrived with the wrong digest; the message has both digests."""


class DataFiles:
    """The files of one data set on this host. Thread-safe."""

    def __init__(self, home: str, name: str, names: Names, files: List[File]) -> None:
        self._home = home
        self._names = names
        self._files = files
        self._set = data_set_folder(home, name)
        self._folder = os.path.join(data_folder(home), DATA_FILES)
        self.pieces = pieces_of(files)
        self.changed: List[str] = []
        """Messages about files that were complete and have changed: name and both digests."""
        self._lock_fd = -1
        self._arrived = threading.Condition()
        self._order: List[int] = []
        self._present: Set[int] = set()
        self._end = threading.Event()

    def open(self) -> None:
        """Make the folders. Raises OSError, and Problem for a name outside the data set."""
        for path, _ in self._names:
            why = why_unsafe(path, any_characters=True)
            if why is not None:
                raise Problem("the data %s" % why, "rename the file")
        for folder in (DATA_FILES, DATA_SETS):
            private_path(self._home, DATA, folder)

    # --- pieces that are present ---

    def scan(self, wait: Callable[[], None]) -> None:
        """Lock the store and find the pieces that are present. Calls `wait` often. Raises Problem, OSError."""
        self._lock(wait)
        complete = {file.sha256 for file in self._files if self._is_complete(file)}
        known: Dict[str, bool] = {}
        for number, piece in enumerate(self.pieces):
            wait()
            name = piece.file.sha256
            if name not in complete and name not in known:
                known[name] = os.path.exists(self._part(name))
            if name in complete or (known[name] and self._matches(piece)):
                self._add(number)
        missing = sum(self.pieces[number].size for number in self.missing())
        check_space(self._folder, missing, "the data")

    def missing(self) -> List[int]:
        with self._arrived:
            return [number for number in range(len(self.pieces)) if number not in self._present]

    def wait_for_pieces(self, known: int, seconds: float) -> List[int]:
        """Return the pieces that have arrived after the first `known` ones, in order; empty if none arrives in time."""
        with self._arrived:
            if len(self._order) <= known and not self.ended:
                self._arrived.wait(seconds)
            return self._order[known:]

    def wait_for_end(self, seconds: float) -> bool:
        """Wait up to `seconds` for `end`. Returns whether it was called."""
        return self._end.wait(seconds)

    def end(self) -> None:
        """End all waits: no more pieces will arrive."""
        self._end.set()
        with self._arrived:
            self._arrived.notify_all()

    @property
    def ended(self) -> bool:
        """Return True if `end` was called."""
        return self._end.is_set()

    # --- reading and writing ---

    def open_piece(self, number: int) -> int:
        """Return a descriptor of the file that holds the piece. Its offset is undefined."""
        name = self.pieces[number].file.sha256
        for path in (self._path(name), self._part(name), self._path(name)):  # it may be renamed meanwhile
            try:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
        raise Problem("%s was removed while it was being sent to another host" % self._path(name), "run podrun again")

    def write(self, number: int, data: Any) -> None:
        """Write a piece. Raises DigestError for wrong data, OSError."""
        piece = self.pieces[number]
        digest = hashlib.sha256(data).hexdigest()
        if digest != piece.sha256:
            where = "%s, bytes %d to %d" % (self._name(piece.file), piece.offset, piece.offset + piece.size)
            raise DigestError("%s: SHA-256 %s, expected %s" % (where, digest, piece.sha256))
        fd = os.open(self._part(piece.file.sha256), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            view, at = memoryview(data), piece.offset
            while view:
                count = os.pwrite(fd, view, at)
                view, at = view[count:], at + count
        finally:
            os.close(fd)
        self._add(number)

    def complete(self) -> None:
        """Rename the complete files, make the data set, and unlock the store. Raises OSError."""
        for file in self._files:
            if not file.size and not os.path.exists(self._path(file.sha256)):
                open(self._part(file.sha256), "wb").close()
        flush(self._folder)
        for file in self._files:
            if os.path.exists(self._part(file.sha256)):
                os.rename(self._part(file.sha256), self._path(file.sha256))
            os.utime(self._path(file.sha256), (VERIFIED, VERIFIED))
        if not is_complete(self._set, self._names, self._path):
            make_set(self._set, self._names, self._path)
        os.utime(self._set)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def discard(self) -> None:
        """Remove unfinished files. Called when the disk is full."""
        for file in self._files:
            try:
                os.unlink(self._part(file.sha256))
            except OSError:
                pass

    # --- inside ---

    def _add(self, number: int) -> None:
        with self._arrived:
            if number not in self._present:
                self._present.add(number)
                self._order.append(number)
            self._arrived.notify_all()

    def _lock(self, wait: Callable[[], None]) -> None:
        path = os.path.join(data_folder(self._home), "lock")
        self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        deadline = time.monotonic() + _LOCK_LIMIT
        while True:
            try:
                return fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Problem(
                        "another run has been transferring data to it for %g s" % _LOCK_LIMIT, "end it, or wait for it"
                    )
                wait()
                time.sleep(0.2)

    def _is_complete(self, file: File) -> bool:
        """Return whether the file is complete. Verifies it again if it was changed, and removes it if its digest is wrong."""
        path = self._path(file.sha256)
        try:
            status = os.lstat(path)
        except OSError:
            return False
        if is_private(path) and status.st_size == file.size and status.st_mtime == VERIFIED:
            return True
        digest = digest_of(path) if is_private(path) else "of another user"
        if digest == file.sha256:
            return True
        self.changed.append("%s has the SHA-256 %s, expected %s" % (self._name(file), digest, file.sha256))
        os.unlink(path)
        return False

    def _name(self, file: File) -> str:
        return next((name for name, sha256 in self._names if sha256 == file.sha256), file.sha256)

    def _matches(self, piece: Piece) -> bool:
        with open(self._part(piece.file.sha256), "rb") as part:
            part.seek(piece.offset)
            return hashlib.sha256(part.read(piece.size)).hexdigest() == piece.sha256

    def _path(self, sha256: str) -> str:
        return os.path.join(self._folder, sha256)

    def _part(self, sha256: str) -> str:
        return os.path.join(self._folder, sha256 + ".part")


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()
