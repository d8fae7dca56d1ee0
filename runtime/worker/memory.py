"""Return the memory that reading a checkpoint or a published model has needed to the operating system."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM, _MMAP = -1, -3  # mallopt(3): M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
_GLIBC = 128 << 10  # bytes; glibc's own thresholds
_MOST = 2**31 - 1  # mallopt takes an int
_REUSED = 64 << 20  # bytes


@contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Make glibc return freed memory to the system at the end, and buffers of more than 64 MB at once.

    Without glibc, do nothing.
    Workers on CPUs keep freed memory, because every step needs it again (launcher/plan/base_env.py). But buffers to read a
    state are needed only for that. While it is read, they are used again and again: new pages from the system for each
    array took as long as all the rest of a restore.
    """
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_MMAP, _REUSED)
    mallopt(_TRIM, _MOST)
    try:
        yield
    finally:
        mallopt(_MMAP, _before("MALLOC_MMAP_THRESHOLD_"))
        mallopt(_TRIM, _before("MALLOC_TRIM_THRESHOLD_"))
        libc.malloc_trim(0)


def _before(name: str) -> int:
    """Return the threshold in bytes that the environment variable sets; glibc's default if it is not set."""
    value = os.environ.get(name, "")
    return min(int(value), _MOST) if value.isdecimal() else _GLIBC
