"""`agent files`: list the files of a folder, and send requested ones, resuming partial downloads.

Requests are lines of JSON: {"folder"} first, then any number of {"type": "list"} and {"type": "get", "path", "have",
"digest"}: the launcher already has the first `have` bytes, with the SHA-256 `digest`. The answers are frames of FROM_FILES;
`size` raw bytes of the file follow a frame `data`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
from typing import Any, Iterator

from ..base.protocol import FILES_LIMIT, PIECE
from ..base.safe_name import UnsafeNameError, open_inside, why_unsafe
from ..base.stdin import GoneError, Stdin
from .checkpoints import LOCK


class _ChangedError(Exception):
    """A file cannot be sent as it was announced."""


def send_files() -> None:
    """Answer requests until stdin ends."""
    stdin = Stdin()
    try:
        folder = os.path.abspath(os.path.expanduser(stdin.frame()["folder"]))
        if not os.path.isdir(folder):
            return _send("failed", error="there is no folder %s" % folder, gone=True)
        _send("folder", path=folder, run=_last_run(folder))
        while True:
            request = stdin.frame()
            if request["type"] == "list":
                _list(folder)
            else:
                _get(folder, request["path"], request["have"], request["digest"])
    except GoneError:
        pass


def _send(kind: str, **fields: Any) -> None:
    sys.stdout.buffer.write(json.dumps(dict(fields, type=kind)).encode() + b"\n")
    sys.stdout.buffer.flush()


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
            return _send("failed", error="%s has more than %d files" % (folder, FILES_LIMIT), gone=False)
        _send("file", path=path, size=status.st_size)
    _send("listed", left_out=left_out)


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
        _send("failed", error=error.strerror or str(error), gone=error.errno in (errno.ENOENT, errno.ENOTDIR))
    except (_ChangedError, UnsafeNameError) as why:
        _send("failed", error=str(why), gone=False)


def _send_from(file: Any, size: int, have: int, digest: str) -> None:
    """Send the first `size` bytes of the file; skip the first `have` bytes if their SHA-256 is `digest`."""
    sha = hashlib.sha256()
    if 0 < have <= size:
        for data in _read(file, have):
            sha.update(data)
    if not 0 < have <= size or sha.hexdigest() != digest:
        have, sha = 0, hashlib.sha256()
        file.seek(0)
    _send("sending", offset=have, size=size)
    for data in _read(file, size - have):
        sha.update(data)
        _send("data", size=len(data))
        sys.stdout.buffer.write(data)
    _send("sent", digest=sha.hexdigest())


def _read(file: Any, size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes in pieces. Raises _ChangedError if the file is shorter."""
    while size:
        data: bytes = file.read(min(PIECE, size))
        if not data:
            raise _ChangedError("it has become shorter while it was read")
        size -= len(data)
        yield data
