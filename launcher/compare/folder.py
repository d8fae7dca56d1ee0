"""Choose the folder of a comparison. It must be new, so that no earlier results get into the table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from podrun.runtime.contract import UserError

from ..pod.pod import Pod
from .files import Files, LocalFiles

PAGE, TABLE, STEPS, CURVE, TIMES = RESULTS = (
    "compare.html",
    "compare.csv",
    "steps.csv",
    "convergence.png",
    "step_time.png",
)


@dataclass(frozen=True)
class Folders:
    """Folders of a comparison: `runs` contains a workdir per variant, on the hosts; `results` is on this machine."""

    runs: Path
    results: Path
    earlier: Path | None = None
    """The folder that was wanted, if it was taken; otherwise None."""


def new_folders(wanted: Path, typed: bool, pod: Pod, names: Sequence[str], files: Files) -> Folders:
    """Return the folders of a comparison, all of which are new.

    Args:
        wanted: the workdir of the command line.
        typed: the user typed it, so it must have no earlier results; otherwise `-compare` is added, and a number if
            needed.
        pod: the pod.
        names: folders of the variants below it.
        files: access to the hosts' files.

    Raises:
        UserError: a typed folder is taken.
        HostError: a host is unreachable.
    """
    if typed:
        return _unless_taken(folders_of(wanted, pod), names, files)
    wanted = wanted.with_name(f"{wanted.name}-compare")
    remote_names = files.names(wanted.parent)
    local_names = LocalFiles().names(folders_of(wanted, pod).results.parent)
    numbered = itertools.chain([wanted], (wanted.with_name(f"{wanted.name}-{n}") for n in itertools.count(2)))
    chosen = next(folder for folder in numbered if folder.name not in remote_names | local_names)
    folders = folders_of(chosen, pod)
    return folders if chosen == wanted else Folders(folders.runs, folders.results, wanted)


def folders_of(runs: Path, pod: Pod) -> Folders:
    """Return the folders for runs and results. Results are beside the runs, or below runs/ here if the hosts are remote."""
    return Folders(runs, runs if pod.traits.files_are_here else Path("runs").absolute() / runs.name)


def _unless_taken(folders: Folders, names: Sequence[str], files: Files) -> Folders:
    remote_names = files.names(folders.runs) & {*names, *RESULTS}
    local_names = LocalFiles().names(folders.results) & set(RESULTS)
    for folder, taken in ((folders.runs, remote_names), (folders.results, local_names)):
        if taken:
            raise UserError(
                f"workdir {folder}: holds {min(taken)} of an earlier run or comparison, and this one must start afresh; "
                "choose another with --workdir DIR, remove that one, or leave --workdir out for a numbered folder"
            )
    return folders
