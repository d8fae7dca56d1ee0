"""Create run ids, also those of the tasks of an array. Imports only fast modules: simulated workers load this file first."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from podrun.runtime.wording import counted

_TASK = re.compile(r"(\d{8}-\d{6}-[0-9a-f]{6})_(\d{1,6})")


def new_run_id() -> str:
    """Return a run id that sorts by time, down to 4 ms: `20261123-151707-c47a9f`.

    The first two of the last six digits are the fraction of the second, so runs of one machine sort in order. The other
    four are random, so that runs that start at the same moment on several machines have different ids.
    """
    now = time.time()
    fraction = int(now % 1 * 256)
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{fraction:02x}{os.urandom(2).hex()}"


class Task(NamedTuple):
    """One of the runs that were submitted as a job array."""

    group: str
    """Id of the array. That of each run begins with it."""
    number: int
    """Its number, from 0."""
    digits: int
    """Number of digits with which its number is written, so that ids sort by it."""


def task_run_id(group: str, number: int, count: int) -> str:
    """Return the run id of a task of an array of `count` tasks: `20261123-151707-c47a9f_07`."""
    return f"{group}_{number:0{len(str(count - 1))}d}"


def task_of(run_id: str) -> Task | None:
    """Return the array that a run belongs to; None if it was not submitted as one."""
    match = _TASK.fullmatch(run_id)
    return Task(match[1], int(match[2]), len(match[2])) if match else None


def unit_of(run_id: str) -> str:
    """Return the id of the array that a run belongs to, or that of the run."""
    task = task_of(run_id)
    return run_id if task is None else task.group


def counted_runs(run_ids: Iterable[str]) -> str:
    """Return how many runs these are, those of arrays as tasks: `2 runs and 1 array with 30 tasks`."""
    ids = list(run_ids)
    tasks = [task for run_id in ids if (task := task_of(run_id))]
    arrays = counted(len({task.group for task in tasks}), "array")
    parts = [counted(len(ids) - len(tasks), "run")] if len(tasks) < len(ids) else []
    return " and ".join([*parts, *([f"{arrays} with {counted(len(tasks), 'task')}"] if tasks else [])])
