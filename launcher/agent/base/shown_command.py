"""Change the command line of this process that `ps` shows and `clean` reads in /proc/PID/cmdline."""

from __future__ import annotations

import ctypes
import os
from typing import List, Sequence

from .processes import stat_fields

_ARG_START = 45  # index in `stat_fields` of the start of the command line in memory; the next field is its end


def shown_command() -> List[bytes]:
    """Return the words of this process's command line."""
    with open("/proc/self/cmdline", "rb") as file:
        return file.read().split(b"\0")[:-1]


def show_command(words: Sequence[bytes]) -> None:
    """Write a command line into the memory of the original one, if it is exactly as long."""
    new = b"".join(word + b"\0" for word in words)
    begin, end = map(int, stat_fields(os.getpid())[_ARG_START:][:2])
    if len(new) == end - begin:  # else there is no room, or the addresses are hidden
        ctypes.memmove(begin, new, len(new))


def show_run(run: str) -> None:
    """Show the id of the run that an agent has got, as the last word of its command."""
    show_command([*shown_command()[:-1], os.fsencode(run)])
