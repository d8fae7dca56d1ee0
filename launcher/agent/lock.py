"""One run at a time has a host, whoever its user is."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from typing import Optional

# An abstract address: no file to be left behind or to be without permission for, and the kernel lets go of it when the agent
# ends in whatever way. It belongs to the network namespace, which is what makes a host in a container, too.
_ADDRESS = b"\0podrun-host"


class HostLock:
    """Held as long as this object lives."""

    def __init__(self) -> None:
        self._socket: Optional[socket.socket] = None

    def take(self, run: str) -> Optional[str]:
        """None if this run has the host now, else who has it: run, user and pid."""
        if self._socket is not None:
            return None
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.bind(_ADDRESS)
        except OSError:
            sock.close()
            return _holder(run)
        sock.listen(64)
        sock.setblocking(False)
        self._socket = sock
        return None

    def release(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def answer(self) -> None:
        """Lets those go who wanted to know who has the host: their number is limited."""
        while self._socket is not None:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return


def current_holder() -> Optional[str]:
    """Who has the host now, told without taking it for a moment: that could be seen by a run that starts. None: nobody."""
    name = "@" + _ADDRESS[1:].decode()
    with open("/proc/net/unix") as sockets:
        return _holder("") if any(line.split()[-1] == name for line in sockets) else None


def _holder(run: str) -> Optional[str]:
    """Who listens there; None if it is another agent of the same run (several hosts of a pod on one machine)."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(_ADDRESS)
            pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                holder = file.read().rstrip(b"\0").split(b"\0")[-1].decode(errors="replace")
        except OSError:
            return "another run"  # it may have ended just now: the next try will tell
    if holder == run:
        return None
    return "run %s of %s (agent pid %d)" % (holder, user_name(uid), pid)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "user %d" % uid


def own_address() -> Optional[str]:
    """The address at which the SSH connection arrived here: behind a NAT it is the one the other hosts know."""
    fields = os.environ.get("SSH_CONNECTION", "").split()
    return fields[2] if len(fields) == 4 else None
