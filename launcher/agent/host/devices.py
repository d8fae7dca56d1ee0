"""List a host's accelerators by their device files, and the processes that use them, without opening a device."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Dict, Iterable, List, Optional, Set

from ..base.private import user_name
from ..base.processes import all_pids, stat_fields
from ..base.sockets import is_locked

if TYPE_CHECKING:
    from ..base.from_agent import Holder, Holders, LockFile

LOCK_FILE = "/tmp/libtpu_lockfile"
"""Lock file by which libtpu gives the chips to one process. A killed process may leave it behind."""
_COMMAND = 200  # characters of a command line that are reported
_KINDS = {"accel": ("", r"accel\d+"), "vfio": ("vfio", r"\d+"), "nvidia": ("", r"nvidia\d+")}


def device_nodes(folder: str = "/dev") -> Dict[str, List[str]]:
    """Return the device paths by kind (`accel`, `vfio`: TPU chips; `nvidia`: GPUs)."""
    nodes = {}
    for kind, (below, pattern) in _KINDS.items():
        place = os.path.join(folder, below) if below else folder
        try:
            names = [name for name in os.listdir(place) if re.fullmatch(pattern, name)]
        except OSError:
            names = []
        nodes[kind] = [os.path.join(place, name) for name in sorted(names, key=_number)]
    return nodes


def holders(paths: Iterable[str]) -> Holders:
    """Return the processes that have one of the files open or mapped.

    `partial` is true if this user may not inspect some processes of other users.
    """
    wanted = {os.path.realpath(path) for path in paths}
    rows: List[Holder] = []
    partial = False
    for pid in all_pids() if wanted else []:
        if pid == os.getpid():
            continue
        try:
            files = _open_files(pid, wanted)
            if files:
                rows.append(_describe(pid, sorted(files)))
        except PermissionError:
            partial = True
        except OSError:
            continue  # the process has just ended
    return {"processes": rows, "partial": partial}


def lock_file(path: str = LOCK_FILE) -> Optional[LockFile]:
    """Return the state of libtpu's lock file; None if there is none. `partial` is as in `holders`."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    users = holders([path])
    return {
        "path": path,
        "owner": user_name(status.st_uid),
        "writable": os.access(path, os.W_OK),
        "held": bool(users["processes"]) or is_locked(status),
        "partial": users["partial"],
    }


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name))


def _open_files(pid: int, wanted: Set[str]) -> Set[str]:
    """Return the wanted files that a process has open or mapped. Raises OSError if it has ended or may not be inspected."""
    folder = "/proc/%d/fd" % pid
    files = set()
    for fd in os.listdir(folder):
        try:
            target = os.readlink("%s/%s" % (folder, fd))
        except FileNotFoundError:
            continue  # closed just now
        if target in wanted:
            files.add(target)
    try:
        return files | _mapped_files(pid, wanted)
    except OSError:
        if files:
            return files
        raise


def _mapped_files(pid: int, wanted: Set[str]) -> Set[str]:
    """Return the wanted files that a process has mapped, which it may have closed."""
    files = set()
    with open("/proc/%d/maps" % pid, "rb") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if len(fields) == 6:
                files.add(os.fsdecode(fields[5].rstrip(b"\n")))
    return files & wanted


def _describe(pid: int, files: List[str]) -> Holder:
    """Return pid, user, command and start time of a process that has the files open. Raises OSError."""
    with open("/proc/%d/cmdline" % pid, "rb") as file:
        words = file.read().rstrip(b"\0").split(b"\0")
    ticks = int(stat_fields(pid)[19])  # start time after boot
    with open("/proc/uptime", "rb") as file:
        uptime = float(file.read().split()[0])
    return {
        "pid": pid,
        "user": user_name(os.stat("/proc/%d" % pid).st_uid),
        "command": b" ".join(words).decode(errors="replace")[:_COMMAND],
        "since": round(time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")),
        "files": files,
    }
