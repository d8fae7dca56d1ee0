"""Save and restore any pytree, for loops that do not use `steps`.

Arrays, numbers, texts and bytes are saved, under their names in the tree; all else, such as functions, comes from the tree
that is restored into. Arrays may be divided over the processes of the pod: each saves and reads its part. Everything else
must be the same on all processes, and is saved once. A checkpoint is complete or not there, and can be restored on any
number of processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from podrun.runtime.checkpoint.program import ProgramCheckpoints
from podrun.runtime.contract import EventKind
from podrun.runtime.distributed import gather

from .session import current

Folder = str | os.PathLike[str]


def save(step: int, state: Any, *, folder: Folder | None = None, keep: int = 2) -> None:
    """Save the state after `step` steps, on all processes together. Return when it is on disk.

    Args:
        step: number of the checkpoint, larger than those of all others there.
        state: any pytree.
        folder: by default `checkpoints` in the workdir.
        keep: newest checkpoints to keep.

    Raises:
        UserError: the folder cannot be used.
        OSError: it cannot be written.
        ValueError: the number is negative.
    """
    if step < 0:
        raise ValueError(f"podrun.checkpoint.save: step is {step}, expected 0 or more")
    with _opened(folder, state, keep) as checkpoints:
        checkpoints.save(step, state)
        checkpoints.completed(wait=True)
    gather([0])  # the others wait for process 0
    if jax.process_index() == 0:
        current().reporter.event(EventKind.CHECKPOINT, step=step)


def restore(like: Any, *, folder: Folder | None = None, step: int | None = None) -> tuple[int, Any] | None:
    """Return (step, state) of the newest checkpoint, or of `step`; None if there is none. On all processes together.

    Args:
        like: a state of the same structure, shapes and layout.
        folder: by default `checkpoints` in the workdir.
        step: which one.

    Raises:
        UserError: it is of another state, or none can be read.
    """
    with _opened(folder, like, keep=1) as checkpoints:
        if step is None:
            return checkpoints.newest(like, current().reporter)
        return step, checkpoints.restore(step, like, current().reporter)


@contextmanager
def _opened(folder: Folder | None, like: Any, keep: int) -> Iterator[ProgramCheckpoints]:
    session = current()
    if folder is None:
        directory, storage = session.workdir.checkpoints, session.storage
    else:
        directory = Path(folder).expanduser().absolute()
        storage = session.storage_of(directory)
    checkpoints = ProgramCheckpoints(directory, like, keep, storage)
    try:
        yield checkpoints
    finally:
        checkpoints.close()
