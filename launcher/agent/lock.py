"""One run at a time has a host: a user's runs by a file that only this user can lock, and others are told of it.

What other users say cannot keep a run from its host: whoever has the devices is for the devices' own locks to decide.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Optional

from .private import private_path, user_name
from .sockets import is_locked, owner_of

# An abstract address, where other users' podruns see who has the host: no file to be left behind or to be without permission
# for. It belongs to the network namespace, which is what makes a host in a container, too. Anybody may take it, so it locks
# nothing; it only tells runs of this user, and of root, from others.
_ADDRESS = b"\0podrun-host"
_WORD = 100  # characters of what another process says of itself
_QUEUE = 64  # of those who want to know who has the host


class HostLock:
    """Held as long as this object lives."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._file = -1
        self._socket: Optional[socket.socket] = None

    def take(self, run: str) -> Optional[str]:
        """None if this run has the host now, else who of this user has it: run, user and pid. Raises OSError."""
        if self._file < 0:
            holder = self._lock_file(run)
            if holder is not None:
                return holder
        if self._socket is None:
            self._socket = _announce()
            if self._socket is None:
                return _run_that_counts(run)  # with another home: the file does not know of it
        return None

    def _lock_file(self, run: str) -> Optional[str]:
        """None if it is locked now, by this agent or another of the same run (several hosts of a pod on one machine)."""
        private_path(self._home, "locks")
        file = os.open(_path(self._home), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder, pid = _words_in(file)
            os.close(file)
            return None if holder == run else _words_of(_Claim(os.geteuid(), pid, holder))
        except OSError:
            os.close(file)  # a file system without locks: the address is left to tell this user's runs
            return None
        os.ftruncate(file, 0)
        os.pwrite(file, ("%s %d" % (run, os.getpid())).encode(), 0)
        self._file = file
        return None

    def release(self) -> None:
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = -1
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def answer(self) -> None:
        """Lets those go who wanted to know who has the host: their number is limited, and the agent has more to do."""
        for _ in range(_QUEUE):
            if self._socket is None:
                return
            try:
                self._socket.accept()[0].close()
            except OSError:
                return


def current_holder(home: str) -> Optional[str]:
    """Who of this user has the host now, told without taking it for a moment: that could be seen by a run that starts."""
    try:
        file = os.open(_path(home), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return _run_that_counts("")
    try:
        run, pid = _words_in(file)
        locked = is_locked(os.fstat(file))
    finally:
        os.close(file)
    return _words_of(_Claim(os.geteuid(), pid, run)) if locked else _run_that_counts("")


def claimed_by_others() -> Optional[str]:
    """Which other user says that a run of theirs has the host, with its uid. None: nobody."""
    claim = _ask()
    return None if claim is None or claim.uid in (os.geteuid(), 0) else _words_of(claim)


class _Claim:
    """Who has the address: `uid` and `pid` by the kernel's word, if it gives it; `run` by that process's."""

    def __init__(self, uid: Optional[int], pid: int, run: str) -> None:
        self.uid, self.pid, self.run = uid, pid, run


def _ask() -> Optional[_Claim]:
    """Return who has the address; None also if that cannot be found out."""
    try:
        return _look()
    except Exception:  # whatever other users have bound there, it ends no agent
        return None


def _look() -> Optional[_Claim]:
    taken, uid = owner_of(_ADDRESS)
    if not taken:
        return None
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)  # one who does not answer keeps nobody waiting
        try:
            sock.connect(_ADDRESS)
            pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                run = file.read().rstrip(b"\0").split(b"\0")[-1].decode(errors="replace")[:_WORD]
        except OSError:  # it does not answer, it has just ended, or its command is hidden
            return _Claim(uid, 0, "")
    return _Claim(uid, pid, run)


def _run_that_counts(run: str) -> Optional[str]:
    """A run of this user, or of root, that has the address, unless it is `run`."""
    claim = _ask()
    counts = claim is not None and claim.uid in (os.geteuid(), 0) and claim.run != run
    return _words_of(claim) if claim is not None and counts else None


def _words_of(claim: _Claim) -> str:
    """As the user knows them: `run R of alice (uid 1001, agent pid 7)`."""
    run = "run %s" % claim.run if claim.run else "a run that does not answer"
    if claim.uid is None:
        return "%s of another user" % run
    return "%s of %s (uid %d%s)" % (
        run,
        user_name(claim.uid),
        claim.uid,
        ", agent pid %d" % claim.pid if claim.pid else "",
    )


def _words_in(file: int) -> "tuple[str, int]":
    run, _, pid = os.pread(file, 200, 0).decode(errors="replace").partition(" ")
    return run, int(pid) if pid.isdigit() else 0


def _announce() -> Optional[socket.socket]:
    """None if somebody has the address."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(_ADDRESS)
    except OSError:
        sock.close()
        return None
    sock.listen(_QUEUE)
    sock.setblocking(False)
    return sock


def _path(home: str) -> str:
    """Hosts may share a home, and network namespaces a machine: each has a file of its own."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return os.path.join(home, "locks", "%s-%d" % (boot, os.stat("/proc/self/ns/net").st_ino))
