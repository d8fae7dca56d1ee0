"""Claim the workdir on process 0: one run at a time, and a token by which the other processes recognise the folder.

Other users may be able to write in the workdir. Their files are refused, and their links are not followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import secrets
import socket
import stat
import time
from itertools import count
from pathlib import Path

from ..contract import ENV_PID, UserError, Workdir, WorkerEnv
from .progress import Reporter

_OWNER = 4096  # most characters of the owner's name
_WAIT = 15.0  # seconds: longer than agents live on after their launcher was killed


def claim(workdir: Workdir, env: WorkerEnv, reporter: Reporter) -> None:
    """Create the workdir, lock it until this process ends, and write the token.

    Raises UserError if it is not writable, or if another run uses it.
    """
    try:
        workdir.path.mkdir(parents=True, exist_ok=True)
        _lock(workdir, env, reporter)
        os.close(open_file(workdir.token(env.run_id, env.attempt), os.O_RDWR | os.O_CREAT))
    except OSError as error:
        raise UserError(
            f"workdir {workdir.path}: cannot write there: {error.strerror}; choose another with --workdir DIR"
        ) from None


def _lock(workdir: Workdir, env: WorkerEnv, reporter: Reporter) -> None:
    fd = open_file(workdir.lock, os.O_RDWR | os.O_CREAT)  # stays open, and locked, as long as the process lives
    deadline = time.monotonic() + _WAIT
    told = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return  # a file system without locks
        words = os.pread(fd, 200, 0).decode(errors="replace").split()
        owner = " ".join(filter(str.isprintable, words)) or "of somebody else"  # anybody may have written it
        if time.monotonic() > deadline:
            run = owner.partition(" ")[0]
            raise UserError(
                f"workdir {workdir.path} is in use by run {owner}; `podrun stop {run}` ends it where it was started, "
                "or choose another with --workdir DIR"
            )
        if not told:
            told = True
            reporter.note(f"run {owner} still uses the workdir: waiting up to {_WAIT:g} s for its end")
        time.sleep(0.1)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{env.run_id} (pid {os.environ.get(ENV_PID, os.getpid())} on {socket.gethostname()})".encode(), 0)


def open_file(path: Path, flags: int) -> int:
    """Open one of podrun's files in the workdir, without blocking, and return its descriptor.

    Raises OSError, and UserError if the file was not made by podrun for this user. Other users who can write in the folder
    could replace the file by a link to a file of this user, a pipe, or a file that they lock.
    """
    fd = -1
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        status = os.fstat(fd)
        refused = None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EACCES, errno.EISDIR, errno.ENXIO) or not os.path.lexists(path):
            raise
        status, refused = os.lstat(path), error
    problem = _foreign(path, status, opened=fd >= 0, written=flags & os.O_ACCMODE != os.O_RDONLY)
    if problem and fd >= 0:
        os.close(fd)
    if problem:
        raise UserError(problem)
    if refused:
        raise refused
    return fd


def _foreign(path: Path, status: os.stat_result, opened: bool, written: bool) -> str | None:
    """Return why a file cannot be one that podrun made for this user; None if it can. Root may use other users' files."""
    remedy = "choose another with --workdir DIR"
    owner = _user_name(status.st_uid)
    regular, links = stat.S_ISREG(status.st_mode), written and status.st_nlink > 1
    if not regular or links:
        kind = "a link" if stat.S_ISLNK(status.st_mode) or regular else "not a file"
        return (
            f"workdir {path.parent}: {path.name} there is {kind}, put there by {owner}, where podrun keeps a file; "
            f"remove it, or {remedy}"
        )
    me = os.geteuid()
    if status.st_uid != me and (not opened or (me and status.st_uid)):
        return (
            f"workdir {path.parent} belongs to {owner}, the owner of {path.name} in it; {remedy}, or remove that file if no "
            f"run of {owner} uses the workdir"
        )
    return None


def check_folder(folder: Path) -> None:
    """Raise UserError if another user has replaced a folder of the workdir by a link, which may lead anywhere."""
    if folder.is_symlink() and (uid := os.lstat(folder).st_uid) not in (os.geteuid(), 0):
        raise UserError(
            f"workdir {folder.parent}: {folder.name} there is a link, put there by {_user_name(uid)}, where podrun keeps a "
            "folder; remove it, or choose another with --workdir DIR"
        )


def damaged_name(path: Path) -> Path:
    """Return an unused path beside `path`, to rename a damaged file to."""
    return next(p for n in count(1) if not os.path.lexists(p := path.with_name(f"{path.name}.damaged-{n}")))


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically. A link in its place is replaced, and its target is not changed. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with fresh.open("x", encoding="utf-8") as file:
            file.write(text)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def check_owner(workdir: Workdir, env: WorkerEnv) -> None:
    """Raise UserError if the workdir, named after a train.yaml, belongs to another train.yaml; else record this one.

    Many projects have a file train.yaml. In a folder that hosts share, they would otherwise be resumed as one run.
    """
    if not env.owner:
        return
    try:
        fd = open_file(workdir.owner, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(f"{workdir.owner}: {error.strerror}; remove it, or choose another with --workdir DIR") from None
    with open(fd, "r+", encoding="utf-8", errors="replace") as file:
        owner = file.read(_OWNER).strip()
        if not owner:
            file.write(env.owner + "\n")
            return
    if owner != env.owner:
        raise UserError(
            f"workdir {workdir.path} belongs to another job with the same name: {owner}; choose another with --workdir "
            f"NAME, or give --workdir {workdir.path} to continue that run"
        )
