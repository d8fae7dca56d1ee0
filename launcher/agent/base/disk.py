"""Measure disk space: what is free before it is needed, and how much a folder takes."""

from __future__ import annotations

import errno
import os
from typing import Iterable, List, Optional

from .private import ELSEWHERE
from .problem import Problem

ROOM = "make room there, or " + ELSEWHERE
FULL = (errno.ENOSPC, errno.EDQUOT)
_MB = 10**6
_PROBE = 1 << 16  # bytes of a test file; a process needs about as many at its start


def free_space(folder: str) -> int:
    """Return the bytes that this user may still write to the folder's disk. Raises OSError."""
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def folder_size(folder: str) -> int:
    """Return the bytes of all files in the folder and below; those that are removed meanwhile do not count."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(above, name)).st_size
            except OSError:
                pass
    return total


def names_in(folder: str) -> List[str]:
    """Return the names in the folder; none if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def check_space(folder: str, needed: int, what: str) -> None:
    """Raise Problem if fewer than `needed` bytes are free for `what`. Accepts a file system that reports no size."""
    left = free_space(folder)
    if left < needed and os.statvfs(folder).f_blocks:
        raise Problem("%s needs about %s, and %s is left at %s" % (what, human(needed), human(left), folder), ROOM)


def full_disk(folders: Iterable[str]) -> Optional[str]:
    """Return a message about the first folder whose disk is full; None if a small file fits into each folder."""
    import tempfile  # here, because every agent imports this module

    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(_PROBE))
                file.flush()
        except OSError as error:
            if error.errno in FULL:
                return "the disk of %s is full%s" % (mount_point(folder), room(folder))
    return None


def mount_point(folder: str) -> str:
    """Return the mount point of the disk that holds the folder. Raises OSError."""
    folder = os.path.realpath(folder)
    while os.path.dirname(folder) != folder and os.stat(os.path.dirname(folder)).st_dev == os.stat(folder).st_dev:
        folder = os.path.dirname(folder)
    return folder


def cannot_write(error: OSError, folder: str) -> str:
    """Return the message about a failed write; for a full disk with its free space."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else folder
    return "cannot write %s: %s%s" % (name, error.strerror, room(folder) if error.errno in FULL else "")


def room(folder: str) -> str:
    """Return the free space on a folder's disk in parentheses; empty if unknown."""
    try:
        while not os.path.exists(folder) and os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
        free, space = free_space(folder), os.statvfs(folder)
    except OSError:
        return ""
    files = ", and no more files are possible" if space.f_files and not space.f_favail else ""
    return " (%d kB of %s are free%s)" % (free // 1000, human(space.f_blocks * space.f_frsize), files)


def human(size: int) -> str:
    """Return a size for people: `21 MB`, `1.5 GB`."""
    return "%.1f GB" % (size / (1000.0 * _MB)) if size >= 1000 * _MB else "%d MB" % (size // _MB)
