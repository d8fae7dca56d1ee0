"""Save and restore any pytree, for loops that do not use `steps`.

Arrays, numbers, texts and bytes are saved under their names in the tree. Other leaves, such as functions, are not saved: a
restored tree has those in `like`. Arrays may be divided over the processes of the pod; each process saves and reads
its part. Everything else must be equal on all processes and is saved once. Checkpoints are atomic, and can be restored on any
number of processes.

Dictionaries of the tree may gain numpy arrays, torch tensors and numbers after the first tree that this process has given to
`restore` or `save`, as torch's optimizers do after their first step. A later `restore` returns them, although its tree `like`
does not have them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from podrun.runtime.checkpoint.program import ProgramCheckpoints
from podrun.runtime.checkpoint.retention import Retention
from podrun.runtime.distributed import gather
from podrun.runtime.events import EventKind
from podrun.runtime.ranking import Ranking

from .session import current

Folder = str | os.PathLike[str]


def save(step: int, state: Any, *, folder: Folder | None = None, keep: int = 2) -> None:
    """Save the state after `step` steps, and return when it is on disk. Call it on all processes.

    Args:
        step: number of the checkpoint, larger than all other numbers in the folder.
        state: any pytree.
        folder: by default `checkpoints` in the workdir.
        keep: number of the newest checkpoints to keep.

    Raises:
        UserError: the folder cannot be used, or the state cannot be saved.
        SaveError: the checkpoint cannot be written.
        ValueError: `step` is negative.
    """
    if step < 0:
        raise ValueError(f"podrun.checkpoint.save: step is {step}, expected 0 or more")
    with _opened(folder, state, Retention(keep)) as checkpoints:
        checkpoints.save(step, state)
        checkpoints.completed(wait=True)
    gather([0])  # the others wait for process 0
    if jax.process_index() == 0:
        current().reporter.event({"event": EventKind.CHECKPOINT, "step": step})


def restore(
    like: Any, *, folder: Folder | None = None, step: int | None = None, best: str | None = None
) -> tuple[int, Any] | None:
    """Restore the newest checkpoint, the one of `step`, or the best one. Call it on all processes.

    Args:
        like: a state with the same structure, shapes and shardings. Entries that dictionaries have gained since may be
            missing (see above); they are in the state that is returned.
        folder: by default `checkpoints` in the workdir.
        step: step of the checkpoint; by default the newest that can be read.
        best: restore the checkpoint with the best evaluation, such as `min val/loss`. It exists if `podrun.steps` was
            called with the same `best`.

    Returns:
        (step, state); None if there is no checkpoint, or none with such an evaluation.

    Raises:
        UserError: the checkpoint has another state, or none can be read.
        ValueError: `best` does not name a metric, or is given together with `step`.
    """
    if best is not None and step is not None:
        raise ValueError("podrun.checkpoint.restore: give one of step and best")
    ranking = None if best is None else Ranking.parse(best)
    with _opened(folder, like, Retention(1)) as checkpoints:
        if ranking is not None:
            # Process 0 decides, for all processes: not all of them may see the folder.
            ranked = checkpoints.best(ranking) if jax.process_index() == 0 else None
            if (number := int(gather([0 if ranked is None else ranked + 1])[0, 0])) == 0:
                return None
            step = number - 1
        if step is None:
            newest = checkpoints.newest(like, current().reporter)
            return None if newest is None else (newest[0], newest[1].state)
        return step, checkpoints.restore(step, like, current().reporter)


@contextmanager
def _opened(folder: Folder | None, like: Any, retention: Retention) -> Iterator[ProgramCheckpoints]:
    session = current()
    if folder is None:
        directory, storage = session.workdir.checkpoints, session.storage
    else:
        directory = Path(folder).expanduser().absolute()
        storage = session.storage_of(directory)
    first = session.first_states.get(directory)
    checkpoints = ProgramCheckpoints(directory, like, retention, storage, first)
    session.first_states[directory] = checkpoints.first
    try:
        yield checkpoints
    finally:
        checkpoints.close()
