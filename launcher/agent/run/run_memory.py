"""Make and remove a run's folder in /dev/shm on this host, for its checkpoints in memory."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from typing import TYPE_CHECKING, Dict, Iterator, List, Tuple

from ..base.places import MEMORY, MEMORY_PREFIX
from ..base.private import is_private

if TYPE_CHECKING:
    from ..base.to_agent import Spec

_LOCK = "agent"  # file in the folder that its agent holds a lock on: seen in all containers that share /dev/shm
_ATTEMPT = "attempt"  # file with the number of the last attempt that this host was in
_FORGOTTEN = 600.0  # seconds after the last write for which a run on a shared host may still be between two attempts
_held: Dict[str, int] = {}  # descriptor of the lock, by folder


def make_memory(spec: Spec) -> None:
    """Make the run's folder, if it uses one, and remove those of runs that have no agent any more. Does not raise OSError.

    The workers report a folder that cannot be made.
    """
    try:
        for run, folder in memory_folders():
            least = 0.0 if spec["exclusive"] and os.path.exists(os.path.join(folder, _LOCK)) else _FORGOTTEN
            if run != spec["run"] and not has_agent(folder) and time.time() - measure(folder)[1] >= least:
                remove_memory(folder)
        folder = spec.get("memory", "")
        if folder and folder not in _held:
            _make_private(os.path.dirname(folder))
            _make_private(folder)
            fresh = os.path.join(folder, "%s-%d" % (_LOCK, os.getpid()))
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(
                fresh, os.path.join(folder, _LOCK)
            )  # an earlier agent of the run has lost the folder to this one
            _held[folder] = descriptor
        if folder:
            _drop_abandoned(folder, spec["attempt"])
    except OSError:
        return


def _drop_abandoned(folder: str, attempt: int) -> None:
    """Remove what a host has kept that missed the last attempt, and note this one. Raises OSError.

    The others may have gone back to an earlier step meanwhile, and the metrics after it are no longer on record.
    """
    noted = os.path.join(folder, _ATTEMPT)
    try:
        with open(noted, encoding="ascii") as file:
            last = int(file.read())
    except (OSError, ValueError):
        last = -2
    if last not in (attempt - 1, attempt):
        for name in _names(folder):
            if name != _LOCK:
                os.remove(os.path.join(folder, name))
    with open(noted + ".new", "w", encoding="ascii") as file:
        file.write(str(attempt))
    os.replace(noted + ".new", noted)


def _make_private(folder: str) -> None:
    """Make a folder for this user alone. Raises OSError if its name leads elsewhere: anybody can make names in /dev/shm."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not is_private(folder):
            raise


def end_memory(spec: Spec) -> None:
    """Remove the run's folder when its agent ends, unless another agent of the run has taken it over."""
    folder = spec.get("memory", "")
    if folder not in _held:
        return
    descriptor = _held.pop(folder)
    try:
        is_mine = os.path.samestat(os.fstat(descriptor), os.stat(os.path.join(folder, _LOCK)))
    except OSError:
        is_mine = False
    if is_mine:
        remove_memory(folder)
    os.close(descriptor)


def has_agent(folder: str) -> bool:
    """Return whether an agent holds a folder in /dev/shm."""
    try:
        descriptor = os.open(os.path.join(folder, _LOCK), os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


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


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
