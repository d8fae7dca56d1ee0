"""Bundles on this host: folders named by their content, complete or not there at all."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import time
from typing import Any, Dict, Iterable, List, Tuple

from .extract import DamagedError, extract
from .places import BUNDLES, ENVIRONMENTS, bundle_folder, environments_folder
from .private import is_private
from .problem import Problem, cannot_write
from .processes import libc

KEEP = {"project": 5, "podrun": 3, "env": 3}
"""How many of each kind stay when nothing uses them."""
RECENT = 3600.0  # seconds since its last use for which a folder may still be in use; runs sign every `serve.SIGN`
DONE = "podrun.json"
"""In an environment that is complete: the interpreter it was built with."""
_ABANDONED = 24 * 3600.0  # seconds after which a folder that was not finished has nobody who works on it
_MOST = 20  # folders that are removed at once: nobody waits for more
_ENVIRONMENT = re.compile("([0-9a-f]{16})(?:\\.txt)?")  # and what it is built of, until it is complete
_BUNDLE = re.compile("(project|podrun)-([0-9a-f]{16})")


def missing(home: str, names: Iterable[str]) -> List[str]:
    """Those that are not here, or that others could have changed. Those that are count as used now."""
    folders = {name: bundle_folder(home, name) for name in names}
    return [name for name, folder in folders.items() if not (is_private(folder) and in_use(folder))]


def in_use(*folders: str) -> bool:
    """Marks folders as used now, by the time of the folder itself. False if one is not there."""
    found = True
    for folder in folders:
        try:
            os.utime(folder)
        except FileNotFoundError:
            found = False
        except OSError:
            pass  # of another user, or read-only: it is there, and nobody removes it
    return found


def unpack(home: str, name: str, source: Any) -> None:
    """Reads the bundle's tar.gz from `source`. Other hosts may do the same in the same place at the same time.

    Raises Problem; what `source` raises when it ends too early passes through. Either way nothing is left.
    """
    known = _BUNDLE.fullmatch(name)
    if known is None:
        raise Problem("%r is not the name of a bundle" % name, "use the same version of podrun on both sides")
    target = bundle_folder(home, name)
    unfinished = _beside(target, "new")
    try:
        os.makedirs(unfinished)
        extract(source, unfinished, known.group(2))
        _flush(unfinished)
        if not is_private(target):
            _remove(target)
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


def _flush(folder: str) -> None:
    """To the disk, before its name says that it is complete: a machine may lose its power."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        libc().syncfs(fd)
    finally:
        os.close(fd)


def prune(home: str, keep: Iterable[str]) -> int:
    """Removes what was not used for long, but for the newest of each kind; `keep`: folders that stay in any case.

    Returns how many. What cannot be removed stays.
    """
    kept = set(keep)
    removed = 0
    for kind, folders in _by_kind(home).items():
        newest = max((used for used, _ in folders), default=0.0)  # the file system's clock, not this host's
        for place, (used, folder) in enumerate(sorted(folders, reverse=True)):
            spare = place >= KEEP[kind] and newest - used > RECENT and folder not in kept
            if spare and removed < _MOST:
                removed += _remove(folder)
    for parent in (BUNDLES, ENVIRONMENTS):
        _remove_unfinished(os.path.join(home, parent))
    _remove_unfinished_environments(environments_folder(home))
    return removed


def environments_of(home: str) -> List[Tuple[str, float]]:
    """Return the virtual environments that are complete, each with the time of its last use."""
    return [(folder, used) for used, folder in _by_kind(home)["env"]]


def remove_environments(folders: Iterable[str]) -> int:
    """Return how many could be removed."""
    return sum(map(_remove, folders))


def _by_kind(home: str) -> Dict[str, List[Tuple[float, str]]]:
    """(last use, folder) of all that is complete."""
    found: Dict[str, List[Tuple[float, str]]] = {kind: [] for kind in KEEP}
    for folder in _folders(os.path.join(home, BUNDLES)):
        known = _BUNDLE.fullmatch(os.path.basename(folder))
        if known:
            found[known.group(1)].append((_time(folder), folder))
    for folder in _folders(environments_folder(home)):
        if _ENVIRONMENT.fullmatch(os.path.basename(folder)) and is_complete(folder):
            found["env"].append((_time(folder), folder))
    return found


def _remove_unfinished(parent: str) -> None:
    """What a host left behind that died over it."""
    for folder in _folders(parent):
        name = os.path.basename(folder)
        if (".new." in name or ".old." in name) and time.time() - _time(folder) > _ABANDONED:
            shutil.rmtree(folder, ignore_errors=True)


def lock_path(envs: str, key: str) -> str:
    """Return the file that is locked by whoever builds the environment."""
    return os.path.join(envs, ".%s.lock" % key)


def _remove_unfinished_environments(envs: str) -> None:
    """Those that nobody builds any more, and that no run uses: an older podrun's have no mark that they are complete."""
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
                if _remove(folder) or not os.path.exists(folder):
                    os.unlink(folder + ".txt")
        except OSError:
            pass  # somebody builds it, or there is nothing of it left
        finally:
            os.close(fd)


def is_complete(environment: str) -> bool:
    """Return whether an environment has been built to its end."""
    return os.path.exists(os.path.join(environment, DONE))


def _remove(folder: str) -> bool:
    """Out of its name at once, so that nobody finds half of it."""
    doomed = _beside(folder, "old")
    try:
        os.rename(folder, doomed)
    except OSError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def _beside(folder: str, state: str) -> str:
    """A name for it that no other process has, on any host that shares the place."""
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
