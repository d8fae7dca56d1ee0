"""`agent files`: list the files of a folder, and send requested ones, resuming partial downloads.

The first line names the folder; any number of requests follow. `size` raw bytes of the file follow a frame `data`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
from typing import TYPE_CHECKING, Any, Iterator

from ..base.protocol import FILES_LIMIT, PIECE
from ..base.safe_name import UnsafeNameError, open_inside, why_unsafe
from ..base.stdin import GoneError, Stdin
from ..base.to_agent import FILE_REQUEST, FOLDER_REQUEST
from .checkpoints import LOCK

if TYPE_CHECKING:
    from ..base.from_agent import FromFiles
    from ..base.to_agent import FileRequest


class _ChangedError(Exception):
    """A file has changed, so it cannot be sent as it was listed."""


def send_files() -> None:
    """Answer requests until stdin ends."""
    stdin = Stdin()
    try:
        folder = os.path.abspath(os.path.expanduser(stdin.frame(FOLDER_REQUEST)["folder"]))
        if not os.path.isdir(folder):
            return _fail("there is no folder %s" % folder, gone=True)
        _send({"type": "folder", "path": folder, "run": _last_run(folder)})
        while True:
            request: FileRequest = stdin.frame(FILE_REQUEST)
            if request["type"] == "list":
                _list(folder)
            else:
                _get(folder, request["path"], request["have"], request["digest"])
    except GoneError:
        pass


def _send(frame: FromFiles) -> None:
    sys.stdout.buffer.write(json.dumps(frame).encode() + b"\n")
    sys.stdout.buffer.flush()


def _fail(error: str, gone: bool = False) -> None:
    _send({"type": "failed", "error": error, "gone": gone})


def _last_run(folder: str) -> Any:
    """Return the id of the last run whose workdir was the folder; None if unknown."""
    try:
        with open(os.open(os.path.join(folder, LOCK), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(200).decode(errors="replace").partition(" ")[0].strip() or None
    except OSError:
        return None


def _list(folder: str) -> None:
    """Send a frame for each regular file. Links, pipes and files with unsafe names are only counted."""
    left_out = number = 0
    for path, status in _walk(folder):
        if status is None or not stat.S_ISREG(status.st_mode) or why_unsafe(path):
            left_out += 1
            continue
        number += 1
        if number > FILES_LIMIT:
            return _fail("%s has more than %d files" % (folder, FILES_LIMIT))
        _send({"type": "file", "path": path, "size": status.st_size})
    _send({"type": "listed", "left_out": left_out})


def _walk(folder: str) -> "Iterator[tuple[str, Any]]":
    """Yield (relative path, status) of all files and links below the folder; the status of a link to a folder is None."""
    for above, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names) + [name for name in folders if os.path.islink(os.path.join(above, name))]:
            path = os.path.join(above, name)
            try:
                yield os.path.relpath(path, folder), None if name in folders else os.lstat(path)
            except OSError:
                continue  # removed meanwhile


def _get(folder: str, path: str, have: int, digest: str) -> None:
    try:
        with open(open_inside(folder, path), "rb") as file:
            _send_from(file, os.fstat(file.fileno()).st_size, have, digest)
    except OSError as error:
        _fail(error.strerror or str(error), error.errno in (errno.ENOENT, errno.ENOTDIR))
    except (_ChangedError, UnsafeNameError) as why:
        _fail(str(why))


def _send_from(file: Any, size: int, have: int, digest: str) -> None:
    """Send the first `size` bytes of the file; skip the first `have` bytes if their SHA-256 is `digest`."""
    sha = hashlib.sha256()
    if 0 < have <= size:
        for data in _read(file, have):
            sha.update(data)
    if not 0 < have <= size or sha.hexdigest() != digest:
        have, sha = 0, hashlib.sha256()
        file.seek(0)
    _send({"type": "sending", "offset": have, "size": size})
    for data in _read(file, size - have):
        sha.update(data)
        _send({"type": "data", "size": len(data)})
        sys.stdout.buffer.write(data)
    _send({"type": "sent", "digest": sha.hexdigest()})


def _read(file: Any, size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes in pieces. Raises _ChangedError if the file is shorter."""
    while size:
        data: bytes = file.read(min(PIECE, size))
        if not data:
            raise _ChangedError("it has become shorter while it was read")
        size -= len(data)
        yield data
