"""Check that a folder is shared by all hosts: one writes a file, the others must read it."""

from __future__ import annotations

import os
import time
from typing import Optional

_LIMIT = 3.0  # seconds for the file to appear on a network file system


def offer(folder: str) -> str:
    """Create a file in the folder, or in its nearest existing parent. Returns its path. Raises OSError."""
    place = os.path.abspath(os.path.expanduser(folder))
    while not os.path.exists(place) and place != "/":
        place = os.path.dirname(place)
    path = os.path.join(place, ".podrun-check-%s" % os.urandom(8).hex())
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise OSError(error.errno, error.strerror, folder)  # name the requested folder, not its parent
    try:
        os.fchmod(fd, 0o644)  # the user may have another id on another host
        os.write(fd, os.path.basename(path).encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    return path


def withdraw(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it has been removed already


def look(path: str) -> Optional[str]:
    """Return why this host cannot read the file that `offer` has created on another host; None if it can."""
    deadline = time.monotonic() + _LIMIT
    while True:
        why = _look_once(path)
        if why is None or time.monotonic() > deadline:
            return why
        time.sleep(0.2)


def _look_once(path: str) -> Optional[str]:
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        return "there is no folder %s" % folder
    try:
        with open(path, "rb") as file:
            return None if file.read().decode(errors="replace") == name else "the file has other content"
    except FileNotFoundError:
        return "the file is not there"
    except OSError as error:
        return error.strerror or str(error)
