"""Restore on a pod where only process 0 sees the checkpoints: it reads one and sends the others what they need."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypedDict, TypeVar

import jax

from ..array_names import Arrays
from ..contract import RefusedError, UserError
from ..worker.progress import Reporter
from .damage import DamagedCheckpointError
from .folder import CheckpointFolder, Target
from .messages import broadcast_text
from .pieces import broadcast_arrays, whole_template

M = TypeVar("M")
T = TypeVar("T")
Read = Callable[[int], tuple[M, Arrays]]
"""Reads the checkpoint of a step: (metadata, arrays)."""
Choose = Callable[[Read[M]], "tuple[int, tuple[M, Arrays]] | None"]
"""Chooses a checkpoint and reads it: (step, result of `Read`); None if there is no checkpoint."""


class _Answer(TypedDict, total=False):
    """Message from process 0 to the others. It is empty if there is no checkpoint."""

    refused: str
    """Why it cannot use the checkpoints."""
    step: int
    meta: object
    """The metadata as JSON."""


def restore_from_process_zero(
    checkpoints: CheckpointFolder, choose: Choose[M], target: Target[M, T], reporter: Reporter
) -> tuple[int, T] | None:
    """Restore the checkpoint that `choose` selects on process 0. Called on all processes.

    Args:
        checkpoints: the folder, which only process 0 reads.
        choose: called on process 0 with a function that reads the checkpoint of a step; returns a step and the contents
            read, or None.
        target: how to restore the checkpoint.
        reporter: gets the progress.

    Returns:
        Step and state; None if there is no checkpoint.

    Raises:
        UserError, DamagedCheckpointError: process 0 cannot use the checkpoints; raised there.
        RefusedError: the same, raised on the other processes.
        HostFaultError: process 0's host cannot read at the moment; raised there only.
    """
    arrays: Arrays | None = None
    answer: _Answer = {}
    problem: Exception | None = None
    if jax.process_index() == 0:
        try:
            chosen = choose(lambda step: _read(checkpoints, step, target))
        except (UserError, DamagedCheckpointError) as error:
            problem, answer = error, {"refused": str(error)}
        else:
            if chosen is not None:
                step, (meta, arrays) = chosen
                answer = {"step": step, "meta": meta}
    answer = json.loads(broadcast_text(json.dumps(answer).encode()))
    if problem is not None:
        raise problem
    if "refused" in answer:
        raise RefusedError(answer["refused"])
    if not answer:
        return None
    parsed = target.parse(answer["meta"])
    state = broadcast_arrays(arrays, target.template(parsed), reporter.record.part)
    return answer["step"], target.build(answer["step"], parsed, state)


def _read(checkpoints: CheckpointFolder, step: int, target: Target[M, T]) -> tuple[M, Arrays]:
    whole: Target[M, tuple[M, Arrays]] = Target(
        target.parse,
        target.accept,
        lambda meta: whole_template(target.template(meta)),
        lambda _, meta, arrays: (meta, arrays),
        target.is_part,
    )
    return checkpoints.load(step, whole)
