"""Store bundles on this host as folders that are named by their content and appear only when complete."""

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
from .extract import DamagedError, extract

KEEP = {"project": 5, "podrun": 3, "env": 3, "data": 3}
"""Number of unused folders of each kind that are kept."""
RECENT = (
    3600.0  # seconds since its last use for which a folder may be in use; runs mark theirs every `serve.MARK_INTERVAL`
)
DONE = "podrun.json"
"""File in a complete environment: the interpreter it was built with."""
_ABANDONED = 24 * 3600.0  # seconds after which an unfinished folder counts as abandoned
_MOST = 20  # folders that are removed at once, to limit how long a start waits
_ENVIRONMENT = re.compile("([0-9a-f]{16})(?:\\.txt)?")  # the folder, or its requirements until it is complete
_BUNDLE = re.compile("(project|podrun)-([0-9a-f]{16})")


def missing(home: str, names: Iterable[str]) -> List[str]:
    """Return the bundles that are missing, or that others could have changed. Marks the others as used now."""
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
            pass  # another user's, or read-only: it exists, and no run of ours removes it
    return all_exist


def unpack(home: str, name: str, source: Any) -> None:
    """Unpack the bundle's tar.gz from `source`. Other hosts may do the same in the same place at the same time.

    Raises Problem; an exception of `source`, if it ends too early, passes through. Either way nothing is left behind.
    """
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
    """Flush the folder's file system to disk before the rename that marks it complete: the machine may lose power."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        libc().syncfs(fd)
    finally:
        os.close(fd)


def prune(home: str, keep: Iterable[str]) -> int:
    """Remove folders that were not used for long, except the newest of each kind and those in `keep`.

    Returns how many were removed. Folders that cannot be removed stay.
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
    """Return the virtual environments that are complete, each with the time of its last use."""
    return [(folder, used) for used, folder in _by_kind(home)["env"]]


def remove_environments(folders: Iterable[str]) -> int:
    """Remove environments; return how many could be removed."""
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
    """Remove unfinished folders of hosts that died while they unpacked or removed them."""
    for folder in _folders(parent):
        name = os.path.basename(folder)
        if (".new." in name or ".old." in name) and time.time() - _time(folder) > _ABANDONED:
            shutil.rmtree(folder, ignore_errors=True)


def lock_path(envs: str, key: str) -> str:
    """Return the file that is locked while the environment is built."""
    return os.path.join(envs, ".%s.lock" % key)


def _remove_unfinished_environments(envs: str) -> None:
    """Remove incomplete environments that no process builds and no run uses: those of older versions may be in use."""
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
            pass  # it is being built, or it is gone
        finally:
            os.close(fd)


def is_complete(environment: str) -> bool:
    """Return whether the build of an environment has finished."""
    return os.path.exists(os.path.join(environment, DONE))


def remove(folder: str) -> bool:
    """Remove a folder. It is renamed first, so that no process finds it half removed."""
    doomed = beside(folder, "old")
    try:
        os.rename(folder, doomed)
    except OSError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def beside(folder: str, state: str) -> str:
    """Return a temporary name beside the folder that is unique among all processes and hosts that share the place."""
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
