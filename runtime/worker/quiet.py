"""Keep harmless messages of libraries out of a worker's output."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

# Threads print these lines in pieces, which may be interleaved.
_GLOO = re.compile(
    rb"(?:\[Gloo\] Rank |\d+| is connected to | peer ranks\. |Expected number of connected peer ranks is : )*"
)


def quiet_libraries() -> None:
    """Make absl's users, such as orbax, log errors only: they warn of settings that are intended.

    Python's stdout gets a descriptor of its own, so that `without_gloo_lines` does not delay its output.
    """
    from absl import logging

    logging.set_verbosity(logging.ERROR)
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8", errors="backslashreplace")


@contextmanager
def without_gloo_lines() -> Iterator[None]:
    """Suppress the lines that gloo prints in C++ when it connects the processes.

    Other output to file descriptor 1 is held back and written at the end of the block.
    """
    sys.stdout.flush()
    real = os.dup(1)
    with open(os.memfd_create("stdout"), "w+b") as held:
        os.dup2(held.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(real, 1)
            os.close(real)
            _copy(held)


def _copy(held: BinaryIO) -> None:
    held.seek(0)
    for line in held:
        if not _GLOO.fullmatch(line.rstrip(b"\r\n")):
            os.write(1, line)
