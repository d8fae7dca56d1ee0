"""Unpack an archive into a folder without ever writing outside it."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from typing import Any

from ..base.safe_name import UnsafeNameError, path_inside
from .project_copy import STAMP


class DamagedError(Exception):
    """The archive is damaged or not the expected one; the message says how."""


def stays_inside(name: str, target: str) -> bool:
    """Return whether a link at `name` to `target`, both relative to a folder, stays inside that folder.

    `..` is allowed only at the start of the target: after a name, which may be a link itself, it could lead anywhere.
    """
    if os.path.isabs(target) or not target:
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    return ".." not in parts[up:] and up <= name.count("/")


def extract(source: Any, folder: str, digest: str) -> None:
    """Unpack a tar.gz, read from `source`, whose uncompressed SHA-256 starts with `digest`.

    Raises DamagedError if the archive is cut short, has another digest or members outside the folder; OSError if a file
    cannot be written.
    """
    unpacked: Any = _Hashed(source)  # tarfile only reads it
    try:
        # Names are handled as bytes, so that they do not depend on the host's locale.
        with tarfile.open(fileobj=unpacked, mode="r|", encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                _check(member)
                _put(archive, member, path_inside(os.fsencode(folder), member.name, any_characters=True))
        unpacked.drain()
    except UnsafeNameError as error:
        raise DamagedError("it %s" % error)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DamagedError("it is not an archive, or only a part of one (%s)" % error)
    if not unpacked.hash.hexdigest().startswith(digest):
        raise DamagedError("its content is not what its name says")


class _Hashed:
    """A gzip reader that hashes the uncompressed data."""

    def __init__(self, source: Any) -> None:
        self.hash = hashlib.sha256()
        self._gzip = gzip.GzipFile(fileobj=source, mode="rb")

    def read(self, size: int) -> bytes:
        try:
            data = self._gzip.read(size)
        except OSError as error:
            if error.errno is None:  # raised by gzip, not by the system
                raise EOFError(str(error))
            raise
        self.hash.update(data)
        return data

    def drain(self) -> None:
        while self.read(1 << 16):
            pass


def _check(member: tarfile.TarInfo) -> None:
    """Raise DamagedError for a member that could write outside the folder. podrun's own archives have none."""
    if not (member.isreg() or member.isdir() or member.issym()):
        raise DamagedError("%r is neither a file nor a link" % member.name)
    if member.issym() and not stays_inside(member.name, member.linkname):
        raise DamagedError("the link %r leads out of it" % member.name)


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, path: bytes) -> None:
    os.makedirs(path if member.isdir() else os.path.dirname(path), exist_ok=True)
    if member.isdir():
        return
    if member.issym():
        os.symlink(_bytes(member.linkname), path)
    else:
        content = archive.extractfile(member)
        assert content is not None
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            shutil.copyfileobj(content, file)
            os.fchmod(file.fileno(), 0o700 if member.mode & 0o100 else 0o600)
    os.utime(path, (STAMP, STAMP), follow_symlinks=False)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
