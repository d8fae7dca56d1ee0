"""Find the runs of a job array by the array's id."""

from __future__ import annotations

from collections.abc import Sequence

from ..pod.run_id import task_of
from .runs import RunDirectory, all_runs, label_of

_LEAST = 4  # characters of the end of an id that name an array


def find_array(name: str | None) -> list[RunDirectory]:
    """Return the runs of an array, in their order; empty if `name` means no array.

    `name`: the array's id, or its end; None: the array of the newest run.
    """
    runs = all_runs()
    groups: dict[str, list[RunDirectory]] = {}
    for run in reversed(runs):
        if task := task_of(run.run_id):
            groups.setdefault(task.group, []).append(run)
    if name is None:
        newest = task_of(runs[0].run_id) if runs else None
        return groups[newest.group] if newest else []
    if name in groups:
        return groups[name]
    matches = [group for group in groups if len(name) >= _LEAST and group.endswith(name)]
    others = [run for run in runs if not task_of(run.run_id) and run.run_id.endswith(name)]
    return groups[matches[0]] if len(matches) == 1 and not others else []


def described(run: RunDirectory) -> str:
    """Return the id of a run of an array with its values: `20261123-151707-c47a9f_07 (LR=1e-3)`."""
    name = label_of(run).name
    return f"{run.run_id} ({name})" if name else run.run_id


def array_id(runs: Sequence[RunDirectory]) -> str:
    """Return the id of the array of these runs."""
    task = task_of(runs[0].run_id)
    assert task is not None
    return task.group
