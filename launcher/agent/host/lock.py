"""Give a host to one run at a time: a file lock among the runs of a user, and a socket address that names the run to others.

Other users cannot keep a run from its host by this; between users, the devices' own locks decide.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Optional

from ..base.holder import describe_holder
from ..base.private import private_path
from ..base.sockets import is_locked, owner_of

# An abstract address shows the runs of other users who holds the host, without a file that could be left behind or lack
# permissions. It belongs to the network namespace, which separates hosts in containers as well. Any process may bind it, so
# it locks nothing between users; it only identifies runs of this user and of root.
_ADDRESS = b"\0podrun-host"
_RUN_LENGTH = 100  # characters of the run id that another process claims
_QUEUE = 64  # pending connections


class HostLock:
    """The lock on a host, held until `release`."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._file = -1
        self._socket: Optional[socket.socket] = None

    def take(self, run: str) -> Optional[str]:
        """Take the host for `run`. Returns None, or a text about the run that holds it. Raises OSError."""
        if self._file < 0:
            holder = self._lock_file(run)
            if holder is not None:
                return holder
        if self._socket is None:
            self._socket = _announce()
            if self._socket is None:
                return _competing_run(run)  # a run with another home, whose lock file is not this one
        return None

    def _lock_file(self, run: str) -> Optional[str]:
        """Lock the file. Returns None if this run has the lock, perhaps by another agent; otherwise words about the
        holder.
        """
        private_path(self._home, "locks")
        file = os.open(_path(self._home), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder, pid = _read_holder(file)
            os.close(file)
            return None if holder == run else _describe(_Claim(os.geteuid(), pid, holder))
        except OSError:
            os.close(file)  # a file system without locks: only the address separates this user's runs
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

    def drain_connections(self) -> None:
        """Accept and close connections of processes that asked which run has the host, so that the queue stays short."""
        for _ in range(_QUEUE):
            if self._socket is None:
                return
            try:
                self._socket.accept()[0].close()
            except OSError:
                return


def current_holder(home: str) -> Optional[str]:
    """Return the run of this user that holds the host, if any. Does not take the lock, which could refuse a starting run."""
    try:
        file = os.open(_path(home), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return _competing_run("")
    try:
        run, pid = _read_holder(file)
        locked = is_locked(os.fstat(file))
    finally:
        os.close(file)
    claim = _current_claim()
    if claim is not None and not claim.pid and claim.uid in (os.geteuid(), 0):
        # In another PID namespace, as in another container: /proc/locks does not show its lock, nor the address its run.
        return _describe(_Claim(claim.uid, 0, run))
    return _describe(_Claim(os.geteuid(), pid, run)) if locked else _competing_run("")


def claimed_by_others() -> Optional[str]:
    """Return a text about a run of another user that has claimed the host; None if there is no such run."""
    claim = _current_claim()
    return None if claim is None or claim.uid in (os.geteuid(), 0) else _describe(claim)


class _Claim:
    """A process that has bound the address. The kernel tells its `uid` and `pid`, if known; the process tells its `run`."""

    def __init__(self, uid: Optional[int], pid: int, run: str) -> None:
        self.uid, self.pid, self.run = uid, pid, run


def _current_claim() -> Optional[_Claim]:
    """Return the process that has bound the address; None if there is none or it cannot be determined."""
    try:
        return _read_claim()
    except Exception:  # nothing that another user does with the address may end the agent
        return None


def _read_claim() -> Optional[_Claim]:
    taken, uid = owner_of(_ADDRESS)
    if not taken:
        return None
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)  # a process that does not answer must not block the agent
        try:
            sock.connect(_ADDRESS)
            pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                run = file.read().rstrip(b"\0").split(b"\0")[-1].decode(errors="replace")[:_RUN_LENGTH]
        except OSError:  # the process does not answer, has just ended, or hides its command line
            return _Claim(uid, 0, "")
    return _Claim(uid, pid, run)


def _competing_run(run: str) -> Optional[str]:
    """Return the run of this user, or of root, that has bound the address; None if there is none or it is `run`."""
    claim = _current_claim()
    competes = claim is not None and claim.uid in (os.geteuid(), 0) and claim.run != run
    return _describe(claim) if claim is not None and competes else None


def _describe(claim: _Claim) -> str:
    return describe_holder(claim.run, claim.uid, claim.pid)


def _read_holder(file: int) -> "tuple[str, int]":
    run, _, pid = os.pread(file, 200, 0).decode(errors="replace").partition(" ")
    return run, int(pid) if pid.isdigit() else 0


def _announce() -> Optional[socket.socket]:
    """Bind the address and listen. Returns None if another process has the address."""
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
    """Return the path of the lock file. Boot and network namespace are in its name, because hosts may share a home."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return os.path.join(home, "locks", "%s-%d" % (boot, os.stat("/proc/self/ns/net").st_ino))
