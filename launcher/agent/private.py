"""Folders of podrun's own: nobody else can put, or change, what this user will run from them."""

from __future__ import annotations

import errno
import os
import stat
from typing import Optional

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_UMASK = 0o077  # of all files that podrun makes for itself
_users_umask: Optional[int] = None


class UnsafeError(OSError):
    """Another user could change what is in the folder; the text says why, and what to do."""


def keep_private() -> None:
    """From now on give nobody else access to the files that this process makes."""
    global _users_umask
    _users_umask = os.umask(_UMASK)


def restore_umask() -> None:
    """In a process that is about to become the user's program: its files are the user's, and so is their mode."""
    if _users_umask is not None:
        os.umask(_users_umask)


def private_path(home: str, *below: str) -> str:
    """Make `home` and the folders below it, one in the other, for this user alone. Returns the last.

    Those that exist must be this user's. What podrun has made is closed to others if it was open; a home that the user has
    chosen is not podrun's to change, and must be closed to their writing. Raises UnsafeError, OSError.
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
    """True for a file or folder of this user, no link, that nobody else may write."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & OTHERS_WRITE


def _check(folder: str, podruns: bool) -> None:
    status = os.stat(folder)
    if status.st_uid != os.geteuid():
        raise UnsafeError(
            "%s belongs to %s, who could change what runs from it; choose another folder with `home:` in the pod file, "
            "or PODRUN_HOME on this machine" % (folder, user_name(status.st_uid))
        )
    if podruns and status.st_mode & 0o077:
        os.chmod(folder, 0o700)
        status = os.stat(folder)  # some file systems have no modes
    if status.st_mode & OTHERS_WRITE:
        raise UnsafeError(
            "other users may write in %s (mode %o), and could change what runs from it; `chmod go-w %s`, or choose another "
            "folder with `home:` in the pod file, or PODRUN_HOME on this machine"
            % (folder, stat.S_IMODE(status.st_mode), folder)
        )


def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "user %d" % uid
