"""Check free disk space before it is needed."""

from __future__ import annotations

import os

from .problem import Problem

ROOM = "make room there, or choose another folder with `home:` in the pod file"
_MB = 10**6


def free_space(folder: str) -> int:
    """Return how many bytes this user may still write there. Raises OSError."""
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def check_space(folder: str, needed: int, what: str) -> None:
    """Raise Problem if there is less than `needed`. A file system that reports no size counts as large enough."""
    left = free_space(folder)
    if left < needed and os.statvfs(folder).f_blocks:
        raise Problem("%s needs about %s, and %s is left at %s" % (what, human(needed), human(left), folder), ROOM)


def human(size: int) -> str:
    """Return a size for people: `21 MB`, `1.5 GB`."""
    return "%.1f GB" % (size / (1000.0 * _MB)) if size >= 1000 * _MB else "%d MB" % (size // _MB)
