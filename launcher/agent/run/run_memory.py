"""Make and remove a run's folder in /dev/shm on this host, for its checkpoints in memory."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Iterator, List, Set, Tuple

from ..base.places import MEMORY, MEMORY_PREFIX
from ..base.private import private_path
from ..base.processes import all_pids, stat_fields
from ..base.protocol import ENV_RUNS_ALIVE

if TYPE_CHECKING:
    from ..base.to_agent import Spec

_OWNER = "agent"  # file in the folder with the pid of the agent that removes it
_FORGOTTEN = 600.0  # seconds after the last write for which a run on a shared host may still be between two attempts


def make_memory(spec: Spec) -> None:
    """Make the run's folder, if it uses one, and remove those of runs that have no agent any more. Does not raise OSError.

    The workers report a folder that cannot be made.
    """
    try:
        others = [(run, folder) for run, folder in memory_folders() if run != spec["run"]]
        if others:
            alive, least = runs_with_agent(), 0.0 if spec["exclusive"] else _FORGOTTEN
            for run, folder in others:
                if run not in alive and time.time() - measure(folder)[1] >= least:
                    remove_memory(folder)
        if spec.get("memory"):
            folder = spec["memory"]
            private_path(os.path.dirname(folder), os.path.basename(folder))
            with open(os.path.join(folder, _OWNER), "w") as file:
                file.write(str(os.getpid()))
    except OSError:
        return


def end_memory(spec: Spec) -> None:
    """Remove the run's folder when its agent ends, unless another agent of the run has taken it over."""
    folder = spec.get("memory", "")
    try:
        with open(os.path.join(folder, _OWNER)) as file:
            is_mine = bool(folder) and file.read() == str(os.getpid())
    except OSError:
        return
    if is_mine:
        remove_memory(folder)


def memory_folders() -> Iterator[Tuple[str, str]]:
    """Yield (run, folder) for each folder of this user's runs in /dev/shm, one for each host that this machine is."""
    for name in _names(MEMORY):
        above = os.path.join(MEMORY, name)
        try:
            is_mine = name.startswith(MEMORY_PREFIX) and os.lstat(above).st_uid == os.geteuid()
        except OSError:
            continue
        if is_mine and os.path.isdir(above) and not os.path.islink(above):
            for host in _names(above):
                yield name[len(MEMORY_PREFIX) :], os.path.join(above, host)


def remove_memory(folder: str) -> bool:
    """Remove a host's folder in /dev/shm, and that of the run if it is empty then. Returns whether it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(folder))
    except OSError:
        pass  # other hosts of a simulated pod
    return not os.path.exists(folder)


def measure(folder: str) -> Tuple[int, float]:
    """Return the size of a folder in bytes, and the time of the last write to anything in it. Raises OSError."""
    size, newest = 0, os.lstat(folder).st_mtime
    for place, folders, files in os.walk(folder):
        for name in folders + files:
            try:
                status = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            size += status.st_size
            newest = max(newest, status.st_mtime)
    return size, newest


def runs_with_agent() -> Set[str]:
    """Return the ids of all users' runs with an agent or relay here, known by a command line that ends with `run RUN`.

    Agents in other containers are not visible here; the caller has named their runs.
    """
    runs = set(os.environ.get(ENV_RUNS_ALIVE, "").split())
    for pid in all_pids():
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                words = file.read().rstrip(b"\0").split(b"\0")
            if len(words) > 3 and words[-2] == b"run" and words[-3].endswith(b".pyz") and stat_fields(pid)[0] != b"Z":
                runs.add(words[-1].decode(errors="replace"))
        except OSError:
            continue
    return runs


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
