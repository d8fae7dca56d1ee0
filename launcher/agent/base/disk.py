"""Check free disk space before it is needed."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import Iterable, Optional

from .problem import Problem

ROOM = "make room there, or choose another folder with `home:` in the pod file"
FULL = (errno.ENOSPC, errno.EDQUOT)
_MB = 10**6
_SOME = 1 << 16  # bytes that a process needs at its start


def free_space(folder: str) -> int:
    """Return how many bytes this user may still write there. Raises OSError."""
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def check_space(folder: str, needed: int, what: str) -> None:
    """Raise Problem if there is less than `needed`. A file system that reports no size counts as large enough."""
    left = free_space(folder)
    if left < needed and os.statvfs(folder).f_blocks:
        raise Problem("%s needs about %s, and %s is left at %s" % (what, human(needed), human(left), folder), ROOM)


def full_disk(folders: Iterable[str]) -> Optional[str]:
    """Return which folder's disk is full, and how full; None if each of these folders takes some more."""
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(_SOME))
                file.flush()
        except OSError as error:
            if error.errno in FULL:
                return "the disk of %s is full%s" % (mount_point(folder), room(folder))
    return None


def mount_point(folder: str) -> str:
    """Return the folder that a folder's disk is mounted on. Raises OSError."""
    folder = os.path.realpath(folder)
    while os.path.dirname(folder) != folder and os.stat(os.path.dirname(folder)).st_dev == os.stat(folder).st_dev:
        folder = os.path.dirname(folder)
    return folder


def cannot_write(error: OSError, folder: str) -> str:
    """Return what could not be written and why, for a user; of a full disk also how full it is."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else folder
    return "cannot write %s: %s%s" % (name, error.strerror, room(folder) if error.errno in FULL else "")


def room(folder: str) -> str:
    """Return, in parentheses, what is free on the disk of a folder; empty if nobody knows."""
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
