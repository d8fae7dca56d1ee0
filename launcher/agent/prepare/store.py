"""Store bundles on this host: folders that are named by their content, and appear only when they are complete."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import time
from typing import Any, Dict, Iterable, List, Tuple

from ..base.places import BUNDLES, ENVIRONMENTS, bundle_folder, environments_folder
from ..base.private import is_private
from ..base.problem import Problem, cannot_write
from ..base.processes import libc

KEEP = {"project": 5, "podrun": 3, "programs": 3, "env": 3, "data": 3}
"""Number of unused folders of each kind that are kept."""
RECENT = 3600.0  # seconds after its last use in which a folder may still be in use; see `claim.MARK_INTERVAL`
DONE = "podrun.json"
"""Name of a file that marks an environment as complete. It has the version of its interpreter."""
_ABANDONED = 24 * 3600.0  # seconds after which an unfinished folder counts as abandoned
_MOST = 20  # folders removed by one `prune`, because a start waits for it
_ENVIRONMENT = re.compile("([0-9a-f]{16})(?:\\.txt)?")  # an environment, or its requirements while it is built
_BUNDLE = re.compile("(project|podrun|programs)-([0-9a-f]{16})")


def missing(home: str, names: Iterable[str]) -> List[str]:
    """Return the bundles that are missing, or that other users could have changed. Marks the others as used now."""
    folders = {name: bundle_folder(home, name) for name in names}
    return [name for name, folder in folders.items() if not (is_private(folder) and in_use(folder))]


def in_use(*folders: str) -> bool:
    """Mark folders as used now, by their modification time. Returns False if one is missing."""
    all_exist = True
    for folder in folders:
        try:
            os.utime(folder)
        except FileNotFoundError:
            all_exist = False
        except OSError:
            pass  # it belongs to another user or is read-only, so podrun does not remove it
    return all_exist


def unpack(home: str, name: str, source: Any) -> None:
    """Unpack the bundle's tar.gz from `source`. Hosts that share a home may do so at the same time.

    Raises Problem, and any exception of `source`. An unfinished folder is removed.
    """
    from .extract import DamagedError, extract

    match = _BUNDLE.fullmatch(name)
    if match is None:
        raise Problem("%r is not the name of a bundle" % name, "use the same version of podrun on both sides")
    target = bundle_folder(home, name)
    unfinished = beside(target, "new")
    try:
        os.makedirs(unfinished)
        extract(source, unfinished, match.group(2))
        flush(unfinished)
        if not is_private(target):
            remove(target)
        try:
            os.rename(unfinished, target)
        except OSError:
            if not in_use(target):  # else another host was faster
                raise
    except DamagedError as error:
        raise Problem("%s did not arrive as it was sent: %s" % (name, error), "run podrun again")
    except OSError as error:
        raise cannot_write(os.path.join(home, BUNDLES), error)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def flush(folder: str) -> None:
    """Flush the folder's file system to disk. Call it before the rename that marks the folder complete."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        libc().syncfs(fd)
    finally:
        os.close(fd)


def prune(home: str, keep: Iterable[str]) -> int:
    """Remove folders that were not used for long. Returns their number. Folders that cannot be removed stay.

    Keeps the newest folders of each kind, and those in `keep`.
    """
    kept = set(keep)
    removed = 0
    for kind, folders in _by_kind(home).items():
        newest = max((used for used, _ in folders), default=0.0)  # the file system's clock, not this host's
        for place, (used, folder) in enumerate(sorted(folders, reverse=True)):
            spare = place >= KEEP[kind] and newest - used > RECENT and folder not in kept
            if spare and removed < _MOST:
                removed += remove(folder)
    for parent in (BUNDLES, ENVIRONMENTS):
        _remove_unfinished(os.path.join(home, parent))
    _remove_unfinished_environments(environments_folder(home))
    return removed


def environments_of(home: str) -> List[Tuple[str, float]]:
    """Return (folder, time of the last use) of the complete virtual environments."""
    return [(folder, used) for used, folder in _by_kind(home)["env"]]


def remove_environments(folders: Iterable[str]) -> int:
    """Remove environments. Returns the number of those that could be removed."""
    return sum(map(remove, folders))


def _by_kind(home: str) -> Dict[str, List[Tuple[float, str]]]:
    """Return (last use, folder) of all complete folders by kind."""
    folders: Dict[str, List[Tuple[float, str]]] = {kind: [] for kind in KEEP}
    for folder in _folders(os.path.join(home, BUNDLES)):
        match = _BUNDLE.fullmatch(os.path.basename(folder))
        if match:
            folders[match.group(1)].append((_time(folder), folder))
    for folder in _folders(environments_folder(home)):
        if _ENVIRONMENT.fullmatch(os.path.basename(folder)) and is_complete(folder):
            folders["env"].append((_time(folder), folder))
    return folders


def _remove_unfinished(parent: str) -> None:
    """Remove the temporary folders of hosts that died while they unpacked or removed a folder."""
    for folder in _folders(parent):
        name = os.path.basename(folder)
        if (".new." in name or ".old." in name) and time.time() - _time(folder) > _ABANDONED:
            shutil.rmtree(folder, ignore_errors=True)


def lock_path(envs: str, key: str) -> str:
    """Return the lock file of an environment, locked while it is built."""
    return os.path.join(envs, ".%s.lock" % key)


def _remove_unfinished_environments(envs: str) -> None:
    """Remove incomplete environments that no process builds and no run uses. (Older versions of podrun may use one.)"""
    try:
        matches = [_ENVIRONMENT.fullmatch(name) for name in os.listdir(envs)]
    except OSError:
        return
    for key in sorted({match.group(1) for match in matches if match}):
        folder = os.path.join(envs, key)
        if is_complete(folder):
            continue
        try:
            fd = os.open(lock_path(envs, key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.utime(fd)
            now = os.fstat(fd).st_mtime  # by the file system's clock, not this host's
            if not is_complete(folder) and now - max(_time(folder), _time(folder + ".txt")) > RECENT:
                if remove(folder) or not os.path.exists(folder):
                    os.unlink(folder + ".txt")
        except OSError:
            pass  # being built, or already removed
        finally:
            os.close(fd)


def is_complete(environment: str) -> bool:
    """Return whether the build of an environment has finished."""
    return os.path.exists(os.path.join(environment, DONE))


def remove(folder: str) -> bool:
    """Remove a folder, renamed first, so that no process finds it half removed. Returns whether it was removed."""
    doomed = beside(folder, "old")
    try:
        os.rename(folder, doomed)
    except OSError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def beside(folder: str, state: str) -> str:
    """Return a temporary path beside the folder, unique among all processes of all hosts that share the folder."""
    return "%s.%s.%s.%d" % (folder, state, socket.gethostname(), os.getpid())


def _folders(folder: str) -> List[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _time(folder: str) -> float:
    try:
        return os.stat(folder).st_mtime
    except OSError:
        return 0.0
