"""Find and remove the folders of the calls that `podrun.submit` has made."""

from __future__ import annotations

import shutil
from pathlib import Path

from podrun.runtime.contract import UserError

from ..agent.base.disk import folder_size
from ..plan.program import Program
from ..pod.home import age_of, podrun_home
from .runs import RunDirectory, all_runs

FOLDER = "functions"
REMOVED = ".removed-"
"""Prefix of the name that a folder gets before it is removed, so that nobody sees a part of it."""
_MODULE = "podrun.function_call"
_LEAST = 3600.0  # seconds: a call that is just being submitted has no run yet


def call_of(run: RunDirectory) -> Path | None:
    """Return the folder of the call that a run makes; None if it is another run, or its record cannot be read."""
    try:
        if _MODULE.encode() not in (run.path / "spec.json").read_bytes():  # most runs; parsing takes longer
            return None
        job = run.spec().job
    except (OSError, UserError):
        return None
    if not isinstance(job, Program) or _MODULE not in job.argv:
        return None
    folder = Path(job.argv[-1])
    return folder if folder.parent == podrun_home() / FOLDER else None


def calls_without_run(older_than: float) -> list[Path]:
    """Return what is left of calls whose run is gone, if it was not used for `older_than` seconds, at least an hour."""
    folders = [*(podrun_home() / FOLDER).glob("*")]
    if not folders:
        return []
    of_runs = {call_of(run) for run in all_runs()}
    least = max(older_than, _LEAST)
    old = [folder for folder in folders if folder not in of_runs and (age_of(folder) or 0.0) >= least]
    return [path for folder in old for path in removable(folder)]


def removable(call: Path) -> list[Path]:
    """Return the files of a call. What the function has saved in the workdir there stays, as that of other runs does.

    Returns the folder itself if nothing in it stays. Raises OSError.
    """
    if not call.is_dir():
        return []
    workdir = call / "workdir"
    if not workdir.is_dir() or not any(workdir.iterdir()):
        return [call]
    return [path for path in call.iterdir() if path != workdir]


def size_of(paths: list[Path]) -> int:
    """Return the bytes of files and folders."""
    return sum(folder_size(str(path)) if path.is_dir() else path.lstat().st_size for path in paths if path.exists())


def remove_path(path: Path) -> None:
    """Remove a file, or a folder that is renamed before, so that nobody sees a part of it. Raises OSError."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith(REMOVED):
        aside = path.with_name(f"{REMOVED}{path.name}")
        if aside.exists():  # left by an interrupted removal
            shutil.rmtree(aside)
        path = path.rename(aside)
    shutil.rmtree(path)
