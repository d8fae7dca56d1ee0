"""Return freed memory to the operating system while a checkpoint or a published model is read."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM, _MMAP = -1, -3  # mallopt(3): M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
_GLIBC = 128 << 10  # bytes; glibc's own thresholds
_MOST = 2**31 - 1  # mallopt takes an int
_READING = 1 << 20  # bytes


@contextmanager
def large_blocks_returned() -> Iterator[None]:
    """Make glibc return each freed buffer of 1 MB or more to the system at once. Without glibc, do nothing.

    Workers on CPUs keep freed memory, because every step needs it again (launcher/plan/base_env.py). But buffers to read a
    state, which are as large as its arrays, are needed only once: keeping them took 0.2 GB more for a checkpoint of 1 GB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_MMAP, _READING)
    mallopt(_TRIM, _READING)
    try:
        yield
    finally:
        mallopt(_MMAP, _before("MALLOC_MMAP_THRESHOLD_"))
        mallopt(_TRIM, _before("MALLOC_TRIM_THRESHOLD_"))


def _before(name: str) -> int:
    """Return the threshold in bytes that the environment variable sets; glibc's default if it is not set."""
    value = os.environ.get(name, "")
    return min(int(value), _MOST) if value.isdecimal() else _GLIBC
