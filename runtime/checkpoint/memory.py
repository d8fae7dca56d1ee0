"""Let freed memory go back to the system while a checkpoint is restored."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM, _MMAP = -1, -3  # mallopt(3): M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
_GLIBC = 128 << 10  # bytes; glibc's own thresholds
_MOST = 2**31 - 1  # mallopt takes an int
_RESTORING = 1 << 20  # bytes


@contextmanager
def large_blocks_returned() -> Iterator[None]:
    """Give each buffer of 1 MB or more back as soon as it is freed; on Linux with glibc, elsewhere do nothing.

    Workers on CPUs keep what is freed, because steps need it again at once (launcher/plan/base_env.py). The buffers of a
    restore, as large as the arrays, are needed once: kept, they were a fifth of a state of 1 GB beside it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_MMAP, _RESTORING)
    mallopt(_TRIM, _RESTORING)
    try:
        yield
    finally:
        mallopt(_MMAP, _before("MALLOC_MMAP_THRESHOLD_"))
        mallopt(_TRIM, _before("MALLOC_TRIM_THRESHOLD_"))


def _before(name: str) -> int:
    """Return the threshold, in bytes, that the environment sets."""
    value = os.environ.get(name, "")
    return min(int(value), _MOST) if value.isdecimal() else _GLIBC
