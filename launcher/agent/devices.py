"""The accelerators of a host, as files: which there are, and which processes have them open. None of them is touched."""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, Iterable, List, Optional, Set

from .private import user_name
from .processes import all_pids, stat_fields
from .sockets import is_locked

LOCK_FILE = "/tmp/libtpu_lockfile"
"""What libtpu makes to have the chips for itself. A killed process may leave it behind."""
_COMMAND = 200  # characters of a command line that are worth reading
_KINDS = {"accel": ("", r"accel\d+"), "vfio": ("vfio", r"\d+"), "nvidia": ("", r"nvidia\d+")}


def device_nodes(folder: str = "/dev") -> Dict[str, List[str]]:
    """Kind (`accel`, `vfio`: TPU chips; `nvidia`: GPUs) to the paths of its devices."""
    found = {}
    for kind, (below, pattern) in _KINDS.items():
        place = os.path.join(folder, below) if below else folder
        try:
            names = [name for name in os.listdir(place) if re.fullmatch(pattern, name)]
        except OSError:
            names = []
        found[kind] = [os.path.join(place, name) for name in sorted(names, key=_number)]
    return found


def holders(paths: Iterable[str]) -> Dict[str, Any]:
    """`processes`: those that have one of the files open or mapped: pid, user, command, since, files.

    `partial`: there are processes of other users that this user may not look into.
    """
    wanted = {os.path.realpath(path) for path in paths}
    found: List[Dict[str, Any]] = []
    partial = False
    for pid in all_pids() if wanted else []:
        if pid == os.getpid():
            continue
        try:
            files = _open_files(pid, wanted)
            if files:
                found.append(dict(_describe(pid), files=sorted(files)))
        except PermissionError:
            partial = True
        except OSError:
            continue  # it ended just now
    return {"processes": found, "partial": partial}


def lock_file(path: str = LOCK_FILE) -> Optional[Dict[str, Any]]:
    """None if there is none; else its owner, whether this user may write it, and whether a process still has it."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return None
    users = holders([path])
    return {
        "path": path,
        "owner": user_name(there.st_uid),
        "writable": os.access(path, os.W_OK),
        "held": bool(users["processes"]) or is_locked(there),
        "partial": users["partial"],
    }


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name))


def _open_files(pid: int, wanted: Set[str]) -> Set[str]:
    """Raises OSError: there is no such process any more, or this user may not look into it."""
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
    """A device may be mapped with its descriptor closed."""
    files = set()
    with open("/proc/%d/maps" % pid, "rb") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if len(fields) == 6:
                files.add(os.fsdecode(fields[5].rstrip(b"\n")))
    return files & wanted


def _describe(pid: int) -> Dict[str, Any]:
    """Raises OSError."""
    with open("/proc/%d/cmdline" % pid, "rb") as file:
        words = file.read().rstrip(b"\0").split(b"\0")
    ticks = int(stat_fields(pid)[19])  # start, after boot
    with open("/proc/uptime", "rb") as file:
        uptime = float(file.read().split()[0])
    return {
        "pid": pid,
        "user": user_name(os.stat("/proc/%d" % pid).st_uid),
        "command": b" ".join(words).decode(errors="replace")[:_COMMAND],
        "since": round(time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")),
    }
