"""The executables that `podrun compile` has stored for a job on this machine, and the bundle that takes them to hosts.

podrun_home()/programs/DIGEST.json       the list of a job's executables on a slice (`runtime/executable_list.py`)
podrun_home()/programs/compiled/KEY      the executables
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.disk_cache import UntrustedError
from podrun.runtime.executable_list import COMPILED, ExecutableList, compiled_beside

from ..pod.home import age_of, podrun_home
from .bundle import Bundle
from .bundles import executables_bundle
from .project_files import MAX_BYTES

if TYPE_CHECKING:
    from podrun.runtime.config import Config

FOLDER = "programs"
_NOT_COMPILED = {"launch", "log", "checkpoint", "sample", "callbacks"}
"""Sections of a job that do not change its executables."""


@dataclass(frozen=True)
class Stored:
    """The stored executables of a job on a slice; there may be none."""

    path: Path
    """Path of their list."""

    def bundle(self) -> Bundle | str:
        """Return the bundle for hosts, or why they cannot be sent: damaged, not this user's own, or too large."""
        again = "`podrun compile` makes them again"
        with contextlib.suppress(OSError):
            os.utime(self.path)  # used now
        try:
            listed = ExecutableList.read(self.path)
            store = compiled_beside(self.path)
            for executable in listed.executables:
                store.load(executable.key)
        except UntrustedError as error:
            return f"{error}; {again}"
        except OSError as error:
            return f"{error.filename}: {error.strerror}; {again}"
        if listed.bytes > MAX_BYTES:
            return f"they have {listed.bytes / 1e6:.0f} MB, and at most {MAX_BYTES / 1e6:.0f} MB are sent"
        files = {
            f"{COMPILED}/{executable.key}": self.path.parent / COMPILED / executable.key
            for executable in listed.executables
        }
        return executables_bundle({**files, self.path.name: self.path})


def stored_executables(job: Config, slice: str) -> Stored:
    """Return the stored executables of a job on the slice of that name; there may be none."""
    sections = job.model_dump(mode="json", exclude=_NOT_COMPILED)
    identity = json.dumps([sections, job.launch.process_per, job.launch.xla, slice], sort_keys=True)
    return Stored(podrun_home() / FOLDER / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json")


def executable_files(older_than: float) -> tuple[list[Path], list[Path]]:
    """Return all files of stored executables, and those that may be removed.

    These belong only to lists not used for `older_than` seconds, or to no list. None may be removed while `podrun
    compile` works.
    """
    folder = podrun_home() / FOLDER
    lists, locks, executables = [*folder.glob("*.json")], [*folder.glob("*.lock")], [*(folder / COMPILED).glob("*")]
    files = [*lists, *locks, *executables]
    if any(_is_locked(lock) for lock in locks):
        return files, []
    old = {path for path in files if (age := age_of(path)) is not None and age >= older_than}
    stay = [path for path in lists if path not in old]
    named = {key for path in stay for key in _keys(path)}
    due = [path for path in files if path in old and path.name not in named]
    stems = {path.stem for path in stay}
    return files, [path for path in due if not (path.suffix == ".lock" and path.stem in stems)]


def _is_locked(path: Path) -> bool:
    try:
        with open(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _keys(path: Path) -> list[str]:
    try:
        return [executable.key for executable in ExecutableList.read(path).executables]
    except (UntrustedError, OSError):
        return []
