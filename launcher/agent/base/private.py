"""Private folders for podrun: no other user can add or change code that this user will run from them."""

from __future__ import annotations

import errno
import os
import stat
from typing import Optional

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
ELSEWHERE = (
    "choose another folder with PODRUN_HOME on this machine, or with `home:` in a pod file for --pod for its hosts"
)
_UMASK = 0o077  # for all files that podrun makes for itself
_users_umask: Optional[int] = None


class UnsafeError(OSError):
    """Another user could change files in the folder; the message says why and what to do."""


def keep_private() -> None:
    """Make files that this process creates from now on inaccessible to other users."""
    global _users_umask
    _users_umask = os.umask(_UMASK)


def restore_umask() -> None:
    """Restore the user's umask in a process that is about to run a user program."""
    if _users_umask is not None:
        os.umask(_users_umask)


def private_path(home: str, *below: str) -> str:
    """Make `home` and a chain of nested folders `below` it, for this user alone. Returns the innermost folder.

    Existing folders must belong to this user. Folders that podrun has made lose the permissions that others had. A home
    that the user has chosen keeps its permissions, and must not be writable by others. Raises UnsafeError, OSError.
    """
    _make(home)
    _check(home, podruns=os.path.basename(home) == ".podrun" and not os.path.islink(home))
    folder = home
    for name in below:
        folder = os.path.join(folder, name)
        _make(folder)
        _check(folder, podruns=True)
    return folder


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)


def is_private(path: str) -> bool:
    """Return whether `path` is this user's file or folder, not a link, and not writable by others."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & OTHERS_WRITE


def _check(folder: str, podruns: bool) -> None:
    status = os.stat(folder)
    if status.st_uid != os.geteuid():
        raise UnsafeError(
            "%s belongs to %s, who could change what runs from it; %s" % (folder, user_name(status.st_uid), ELSEWHERE)
        )
    if podruns and status.st_mode & 0o077:
        os.chmod(folder, 0o700)
        status = os.stat(folder)  # some file systems have no modes
    if status.st_mode & OTHERS_WRITE:
        raise UnsafeError(
            "other users may write in %s (mode %o), and could change what runs from it; `chmod go-w %s`, or %s"
            % (folder, stat.S_IMODE(status.st_mode), folder, ELSEWHERE)
        )


def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "user %d" % uid
