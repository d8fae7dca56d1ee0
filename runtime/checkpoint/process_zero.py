"""Restore on a pod of which only process 0 sees the checkpoints: it reads, decides, and sends the others what they need."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from ..contract import RefusedError, UserError
from ..worker.progress import Reporter
from .damage import DamagedCheckpointError
from .folder import CheckpointFolder, Target
from .messages import tell
from .names import Arrays
from .pieces import spread, whole_template

T = TypeVar("T")
Read = Callable[[int], tuple[dict[str, Any], Arrays]]
"""Return meta and arrays of a step's checkpoint."""
Choose = Callable[[Read], "tuple[int, tuple[dict[str, Any], Arrays]] | None"]
"""Return the step that is restored and what `Read` returned for it; None if there is no checkpoint."""


def restore_from_process_zero(
    checkpoints: CheckpointFolder, choose: Choose, target: Target[T], reporter: Reporter
) -> tuple[int, T] | None:
    """Return step and state of the checkpoint that `choose`, which process 0 calls, has read; None if there is none.

    Raises UserError if process 0 cannot use what is there, on the others RefusedError. A fault of its host is raised there
    alone.
    """
    arrays: Arrays | None = None
    answer: dict[str, Any] = {}
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
    answer = json.loads(tell(json.dumps(answer).encode()))
    if problem is not None:
        raise problem
    if "refused" in answer:
        raise RefusedError(answer["refused"])
    if not answer:
        return None
    state = spread(arrays, target.template(), reporter.beat.part)
    return answer["step"], target.build(answer["step"], answer["meta"], state)


def _read(checkpoints: CheckpointFolder, step: int, target: Target[T]) -> tuple[dict[str, Any], Arrays]:
    whole: Target[tuple[dict[str, Any], Arrays]] = Target(
        target.check, target.accept, lambda: whole_template(target.template()), lambda _, meta, arrays: (meta, arrays)
    )
    return checkpoints.load(step, whole)
