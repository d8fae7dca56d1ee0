"""Build a folder that runs share: one process builds it, writes files whole, and blames a full disk for its failures."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from typing import Any, List, Optional

from ..base.disk import ROOM, free_space, human
from ..base.private import UnsafeError, private_path
from ..base.problem import Problem, cannot_write
from ..base.tool import Say, Tools

LOCK_LIMIT = 2400.0  # seconds to wait for another build of the same folder
_FULL = 20 * 10**6  # free bytes below which a failed build is blamed on the disk, whatever its message


class BuildLock:
    """A lock that one process holds while it builds, among all hosts that share the folder. It ends with the process."""

    def __init__(self, path: str, what: str, tools: Tools, say: Say) -> None:
        """Prepare to lock `path` while `what`, such as `environment`, is built."""
        self._path = path
        self._what = what
        self._tools = tools
        self._say = say
        self._fd = -1

    def __enter__(self) -> None:
        try:
            private_path(*os.path.split(os.path.dirname(self._path)))
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._wait()
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, ("%s, pid %d" % (socket.gethostname(), os.getpid())).encode(), 0)
        except UnsafeError as error:
            raise Problem(*str(error).split("; ", 1))
        except OSError as error:
            raise cannot_write(self._path, error)

    def _wait(self) -> None:
        deadline = time.monotonic() + LOCK_LIMIT
        reported = False
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(self._fd, 200, 0).decode(errors="replace") or "another process"
            if time.monotonic() > deadline:
                raise Problem("%s has been building this %s for too long" % (holder, self._what), "end that process")
            if not reported:
                self._say("waiting for %s, which builds the same %s" % (holder, self._what))
                reported = True
            self._tools.wait(0.2)

    def __exit__(self, *_: Any) -> None:
        os.close(self._fd)


def full_disk_problem(folder: str, argv: List[str], output: str) -> Optional[Problem]:
    """Return the problem if a command failed because the disk of `folder` is full; otherwise None."""
    left = free_space(folder)
    if left >= _FULL and os.strerror(errno.ENOSPC) not in output:
        return None
    return Problem("the disk is full: %s left at %s, while %s ran" % (human(left), folder, " ".join(argv[:4])), ROOM)


def write_whole(path: str, text: str) -> None:
    """Write a file atomically: readers see all of it or nothing. Raises Problem."""
    try:
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)
    except OSError as error:
        raise cannot_write(path, error)
