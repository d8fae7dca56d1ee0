"""Restore the newest checkpoint that all processes can read, and set damaged ones aside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from ..config import Config
from ..contract import Phase, UserError
from ..distributed import gather
from ..state import StateDict
from ..worker.progress import Reporter
from .damage import DamagedCheckpointError
from .folder import CheckpointFolder, Target
from .process_zero import Read, restore_from_process_zero
from .store import Checkpoints, Restored

T = TypeVar("T")

_LAST_STEP = 2**31 - 1  # a step is an int32
_NONE = 2**32 - 1  # in place of a step: there are no more checkpoints


def restore_newest(
    checkpoints: Checkpoints,
    template: Callable[[], StateDict],
    config: Config,
    fingerprint: bytes,
    reporter: Reporter,
) -> Restored | None:
    """Return the newest checkpoint that every process can read; None if there is none.

    Process 0 says which one is tried; all try, and use it only if all can read it. Where only process 0 sees them, it reads
    for all. Damaged ones are renamed once an older one has been restored, not before: a host that can read none of them must
    not put them all out of use.

    Raises UserError if there are checkpoints but none can be read, or if one is of another job; and HostFaultError if this
    host cannot read one now that may be good, which ends the attempt and changes nothing.
    """
    newest = newest_readable(checkpoints, checkpoints.target(template, config, fingerprint), reporter)
    return None if newest is None else newest[1]


def newest_readable(checkpoints: CheckpointFolder, target: Target[T], reporter: Reporter) -> tuple[int, T] | None:
    """Return the step of the newest checkpoint that every process can read, and what `target` makes of it.

    Raises what `restore_newest` raises.
    """
    if jax.process_index() == 0:
        checkpoints.storage.before_restore(checkpoints.directory)
    if not checkpoints.storage.everyone_reads:
        return restore_from_process_zero(
            checkpoints, lambda read: _newest_here(checkpoints, read, reporter), target, reporter
        )
    return _newest_of_all(checkpoints, target, reporter)


def _newest_of_all(checkpoints: CheckpointFolder, target: Target[T], reporter: Reporter) -> tuple[int, T] | None:
    me = jax.process_index()
    candidates, damaged = _candidates(checkpoints)
    while (step := int(gather([next(candidates, _NONE)])[0, 0])) != _NONE:
        reporter.phase(Phase.RESTORE)
        problem = restored = None
        try:
            restored = checkpoints.load(step, target)
        except DamagedCheckpointError as error:
            problem = error
        unable = np.flatnonzero(gather([problem is not None])[:, 0])
        if not unable.size and restored is not None:
            if me == 0:
                _set_aside(checkpoints, damaged, step, reporter)
            return step, restored
        damaged[step] = str(problem or f"process {unable[0]} cannot read checkpoint {step}")
        if me == unable[0] != 0:  # only it knows why
            reporter.note(damaged[step])
    if damaged:
        raise UserError(_none_left(checkpoints, damaged))
    return None


def _newest_here(checkpoints: CheckpointFolder, read: Read, reporter: Reporter) -> tuple[int, Any] | None:
    """Return the step of the newest checkpoint that this process can read, and what `read` returns for it."""
    candidates, damaged = _candidates(checkpoints)
    for step in candidates:
        reporter.phase(Phase.RESTORE)
        try:
            contents = read(step)
        except DamagedCheckpointError as error:
            damaged[step] = str(error)
            continue
        _set_aside(checkpoints, damaged, step, reporter)
        return step, contents
    if damaged:
        raise UserError(_none_left(checkpoints, damaged))
    return None


def _candidates(checkpoints: CheckpointFolder) -> tuple[Iterator[int], dict[int, str]]:
    """Return the steps to try, the newest first, and the reason for each of those that cannot be one."""
    steps = checkpoints.steps()
    damaged = {step: f"checkpoint {step} is none: no step has such a number" for step in steps if step > _LAST_STEP}
    return iter([step for step in steps if step <= _LAST_STEP]), damaged


def _set_aside(checkpoints: CheckpointFolder, damaged: dict[int, str], restored: int, reporter: Reporter) -> None:
    checkpoints.set_losses_aside()
    for step, reason in damaged.items():
        kept = checkpoints.set_aside(step)
        reporter.note(
            f"{reason}; the run goes on from the one before, of step {restored}, and the damaged one is kept as {kept}"
        )


def _none_left(checkpoints: CheckpointFolder, damaged: dict[int, str]) -> str:
    rows = list(damaged.values())
    return "\n".join(
        [
            f"there is no checkpoint left that can be read: {rows[0]}",
            *rows[1:8],
            *([f"and {len(rows) - 8} more"] if len(rows) > 8 else []),
            f"bring back what is missing in {checkpoints.directory}, or choose another --workdir to start anew",
        ]
    )
