"""Remove data from this host that no run has used for long."""

from __future__ import annotations

import fcntl
import os
import time
from typing import List, Tuple

from ..base.places import DATA_FILES, DATA_SETS, data_folder
from .store import KEEP, RECENT, remove

_UNFINISHED = 7 * 24 * 3600.0  # seconds after which an unfinished file is removed


def prune_data(home: str, keep: List[str]) -> int:
    """Remove data sets that were not used for long, and files that belong to no set. Returns the number of removed sets.

    Keeps the newest data sets, and those in `keep`.
    """
    removed = 0
    sets = sorted(((used, folder) for folder, used in sets_of(home)), reverse=True)
    newest = max((used for used, _ in sets), default=0.0)  # the file system's clock, not this host's
    for place, (used, folder) in enumerate(sets):
        if place >= KEEP["data"] and newest - used > RECENT and folder not in keep:
            removed += remove(folder)
    remove_unused_files(home)
    return removed


def sets_of(home: str) -> List[Tuple[str, float]]:
    """Return (folder, time of the last use) of the complete data sets."""
    try:
        with os.scandir(os.path.join(data_folder(home), DATA_SETS)) as entries:
            return [(entry.path, entry.stat().st_mtime) for entry in entries if "." not in entry.name]
    except OSError:
        return []


def remove_unused_files(home: str) -> None:
    """Remove files that belong to no data set, and old unfinished ones. Does nothing during a transfer."""
    folder = os.path.join(data_folder(home), DATA_FILES)
    try:
        fd = os.open(os.path.join(data_folder(home), "lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                unfinished = entry.name.endswith(".part")
                if time.time() - status.st_mtime > _UNFINISHED if unfinished else status.st_nlink == 1:
                    os.unlink(entry.path)
    except OSError:
        pass  # locked by another run, or already gone
    finally:
        os.close(fd)
