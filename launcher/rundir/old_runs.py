"""Find and remove old run directories."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from podrun.runtime.contract import UserError

from ..agent.base.disk import folder_size
from ..plan.plan import DETACHED_LEASE
from ..pod.home import podrun_home
from .calls import REMOVED, call_of, removable, remove_path, size_of
from .run_summary import RunStatus, Summary, summarize
from .runs import RunDirectory, all_runs

_WHY_NOT = {
    RunStatus.PENDING: "waits in the queue",
    RunStatus.RUNNING: "is running",
    RunStatus.ABANDONED: "has not ended, only its launcher is gone",
}


@dataclass(frozen=True)
class OldRun:
    """A run directory that may be removed."""

    directory: RunDirectory
    summary: Summary
    size: int

    @property
    def age(self) -> float:
        return time.time() - (self.summary.ended or self.summary.started)


def old_runs(older_than: float) -> list[OldRun]:
    """Return runs that ended at least `older_than` seconds ago, and abandoned runs whose agents' leases are over."""
    runs = []
    for directory in all_runs():
        summary = summarize(directory)
        least = max(older_than, DETACHED_LEASE) if summary.state is RunStatus.ABANDONED else older_than
        if summary.has_ended and _unconfirmed(directory):
            least = max(older_than, DETACHED_LEASE)  # it is the only record of hosts where processes may be left
        if (
            summary.state in (RunStatus.RUNNING, RunStatus.PENDING)
            or time.time() - (summary.ended or summary.started) < least
        ):
            continue
        runs.append(OldRun(directory, summary, _size(directory)))
    return runs


def old_run(directory: RunDirectory) -> OldRun:
    """Return the run as one that may be removed. Raises UserError unless it has ended."""
    summary = summarize(directory)
    if not summary.has_ended:
        raise UserError(
            f"run {summary.run} {_WHY_NOT.get(summary.state, 'has not ended')}; `podrun stop {summary.run}` ends it"
        )
    if left := _unconfirmed(directory):
        raise UserError(
            f"run {summary.run} may have left something on {'; '.join(left)}; `podrun stop {summary.run}` ends that first"
        )
    return OldRun(directory, summary, _size(directory))


def _size(directory: RunDirectory) -> int:
    """Return the bytes of a run directory, and of what is removed with it."""
    call = call_of(directory)
    return folder_size(str(directory.path)) + (size_of(removable(call)) if call else 0)


def _unconfirmed(directory: RunDirectory) -> list[str]:
    """Return the hosts on which processes of an ended run may be left, each with the reason."""
    end = directory.end()
    return end.get("left_behind", []) if end else []


def remove(run: OldRun) -> None:
    """Remove the run directory. Raises UserError if it has a supervisor again, or cannot be removed."""
    doomed = run.directory.path.with_name(f"{REMOVED}{run.directory.run_id}")
    call = call_of(run.directory)
    try:
        with run.directory.supervise():
            run.directory.path.rename(doomed)  # atomic, so that nobody sees a partial run
        _remove(doomed)
        for path in removable(call) if call else ():
            remove_path(path)
    except OSError as error:
        raise UserError(f"cannot remove {error.filename or doomed}: {error.strerror or error}") from None


def remove_unfinished() -> None:
    """Remove the remains of an interrupted `remove`."""
    for path in (podrun_home() / "runs").glob(f"{REMOVED}*"):
        with contextlib.suppress(OSError):
            _remove(path)


def _remove(doomed: Path) -> None:
    """Remove a run directory; if the user has replaced it by a link, remove both. Raises OSError."""
    if not doomed.is_symlink():
        shutil.rmtree(doomed)
        return
    if doomed.is_dir():
        shutil.rmtree(doomed.resolve())
    doomed.unlink()
