"""Detect processes that the kernel killed for lack of memory, from the kernel's counters."""

from __future__ import annotations

import os
import resource
from typing import List, Optional, Tuple

CGROUPS = "/sys/fs/cgroup"
Kills = Tuple[Optional[int], Optional[int]]
"""Numbers of processes killed by the kernel for lack of memory, in this cgroup and on the machine; None: unknown."""


def kills() -> Kills:
    """Return the current counts."""
    in_cgroup = None
    for folder, file, _ in groups():
        if in_cgroup is None:
            in_cgroup = count_in(os.path.join(folder, file))
    return in_cgroup, count_in("/proc/vmstat")


def has_killed(before: Kills, after: Kills) -> Optional[bool]:
    """Return whether lack of memory killed a worker that got SIGKILL between two counts; None: unknown.

    The count of the cgroup decides if it is known, because the machine's count includes other processes.
    """
    (group_before, machine_before), (group_after, machine_after) = before, after
    if group_before is not None and group_after is not None and group_after > group_before:
        return True
    if machine_before is None or machine_after is None:
        return None if group_before is None else False
    if machine_after == machine_before:
        return False
    return True if group_before is None else None  # a process of another cgroup, or the worker has left this one


def usage() -> str:
    """Return `31.2 GB used of 32.0`: the peak of any ended worker, and the memory of this cgroup or machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return "%.1f GB used of %.1f" % (used / 1e9, available() / 1e9)


def available() -> int:
    """Return the bytes of memory for this cgroup's processes: the least limit of cgroup, parents and machine."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [limit for folder, _, file in groups() for limit in limits_above(folder, file)]
    return min([total, *limits])


def limits_above(folder: str, file: str) -> List[int]:
    """Return the limits of a cgroup and its parents, as far as they have one."""
    limits = []
    while folder.startswith(CGROUPS):
        try:
            with open(os.path.join(folder, file)) as limit:
                limits.append(int(limit.read()))
        except (OSError, ValueError):  # none, or "max"
            pass
        folder = os.path.dirname(folder)
    return limits


def groups() -> Tuple[Tuple[str, str, str], ...]:
    """Return folders that may be this process's cgroup, each with the names of its files for kills and for the limit.

    In a container the path in /proc is often the one outside; then the root of the mounted cgroups is the right one.
    """
    path_v1 = path_v2 = "/"
    try:
        with open("/proc/self/cgroup") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if controllers == "":
                    path_v2 = path
                elif "memory" in controllers.split(","):
                    path_v1 = path
    except (OSError, ValueError):
        pass
    v1, v2 = ("memory.oom_control", "memory.limit_in_bytes"), ("memory.events", "memory.max")
    return (
        (CGROUPS + path_v2, *v2),
        (CGROUPS + "/memory" + path_v1, *v1),
        (CGROUPS, *v2),
        (CGROUPS + "/memory", *v1),
    )


def count_in(path: str) -> Optional[int]:
    """Return N of a line `oom_kill N` in a file; None without such a line."""
    try:
        with open(path) as file:
            for line in file:
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number)
    except (OSError, ValueError):
        pass
    return None
