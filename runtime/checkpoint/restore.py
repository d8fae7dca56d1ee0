"""Restore the newest checkpoint that all processes can read, and rename damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np

from ..array_names import Arrays
from ..config import Config
from ..contract import Phase, RefusedError, UserError
from ..distributed import gather
from ..state import StateDict
from ..wording import first_rows
from ..worker.progress import Reporter
from .damage import DamagedCheckpointError, no_manifest
from .folder import CheckpointFolder, Target
from .names import FROZEN
from .process_zero import Read, restore_from_process_zero
from .store import Checkpoints, Restored

M = TypeVar("M")
T = TypeVar("T")

_LAST_STEP = 2**31 - 1  # a step is an int32
_NONE = 2**32 - 1  # sent in place of a step: no checkpoint is left to try


def restore_newest(
    checkpoints: Checkpoints,
    template: Callable[[], StateDict],
    config: Config,
    fingerprint: bytes,
    reporter: Reporter,
    newer_than: int | None = None,
) -> Restored | None:
    """Restore the newest checkpoint that every process can read. Called on all processes.

    Process 0 names a checkpoint; all processes read it, and use it only if all of them succeed. If only process 0 sees the
    checkpoints, it reads them for all. Damaged checkpoints get another name, so that no later run tries them, but only once
    an older one was restored: a host that cannot read any of them must not rename them all.

    A checkpoint without a manifest is tried last: its save was cut off, unless an older podrun or another tool has made it.

    Args:
        checkpoints: the job's checkpoints.
        template: returns the form of the state's arrays; see `Target.template`.
        config: the job, which must match the checkpoint's.
        fingerprint: digest of the job's data, which must match the checkpoint's.
        reporter: gets progress and notes.
        newer_than: step of a checkpoint elsewhere: older ones are not tried.

    Returns:
        The restored checkpoint; None if there are no checkpoints, or with `newer_than` none that can be read.

    Raises:
        UserError: none of the checkpoints can be read, or one belongs to another job.
        HostFaultError: this host cannot read at the moment. Nothing is renamed.
    """
    newest = newest_readable(checkpoints, checkpoints.target(template, config, fingerprint), reporter, newer_than)
    return None if newest is None else newest[1]


def newest_readable(
    checkpoints: CheckpointFolder, target: Target[M, T], reporter: Reporter, newer_than: int | None = None
) -> tuple[int, T] | None:
    """Restore the newest checkpoint that every process can read, as `target` describes. Called on all processes.

    Returns step and result, and None as `restore_newest` does. Raises as `restore_newest` does.
    """
    if jax.process_index() == 0:
        checkpoints.storage.before_restore(checkpoints.directory)
    if not checkpoints.storage.everyone_reads:
        return restore_from_process_zero(
            checkpoints, lambda read: _newest_here(checkpoints, read, reporter, newer_than), target, reporter
        )
    return _newest_of_all(checkpoints, target, reporter, newer_than)


def set_aside_newer(checkpoints: CheckpointFolder, step: int, reporter: Reporter) -> None:
    """Rename the checkpoints newer than `step`, which cannot be read, and from which the run does not continue.

    Called on process 0 only. Raises UserError if one cannot be renamed.
    """
    reason = "the checkpoint of step {} on disk cannot be read"
    _set_aside(checkpoints, {n: reason.format(n) for n in checkpoints.steps() if n > step}, step, reporter)


def keep_if_whole(checkpoints: CheckpointFolder, step: int, reporter: Reporter) -> bool:
    """Return whether a step that was restored from memory is on disk as well, compared with its manifest.

    A damaged or incomplete checkpoint of that step is renamed, so that the step can be saved again. Called on process 0 only.

    Raises:
        UserError: it cannot be renamed.
        HostFaultError: this host cannot read it at the moment.
    """
    if step not in checkpoints.steps():
        return False
    problem = checkpoints.problem(step)
    if problem is not None:
        kept = checkpoints.set_aside(step)
        reporter.note(f"{problem}; the run continues from that step in memory, and the damaged one is kept as {kept}")
    return problem is None


def restore_step(checkpoints: CheckpointFolder, step: int, target: Target[M, T], reporter: Reporter) -> T:
    """Restore one checkpoint, as `target` describes. Called on all processes. Nothing is renamed.

    Raises:
        UserError: a process cannot read it, because it is damaged there.
        HostFaultError: this host cannot read at the moment.
    """
    reporter.phase(Phase.RESTORE)
    advice = f"`podrun checkpoints {checkpoints.directory.parent}` lists which are whole"
    if not checkpoints.storage.everyone_reads:
        try:
            restored = restore_from_process_zero(checkpoints, lambda read: (step, read(step)), target, reporter)
        except DamagedCheckpointError as error:
            raise UserError(f"{error}; {advice}") from None
        assert restored is not None
        return restored[1]
    problem = value = None
    try:
        value = checkpoints.load(step, target)
    except DamagedCheckpointError as error:
        problem = error
    unable = np.flatnonzero(gather([problem is not None])[:, 0])
    if unable.size or value is None:
        reason = f"{problem or f'process {unable[0]} cannot read checkpoint {step}'}; {advice}"
        raise UserError(reason) if problem is not None else RefusedError(reason)
    return value


def _newest_of_all(
    checkpoints: CheckpointFolder, target: Target[M, T], reporter: Reporter, newer_than: int | None
) -> tuple[int, T] | None:
    me = jax.process_index()
    candidates, damaged, unlisted = _candidates(checkpoints, newer_than)
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
                _conclude(checkpoints, step, damaged, unlisted, reporter)
            return step, restored
        damaged[step] = str(problem or f"process {unable[0]} cannot read checkpoint {step}")
        if me == unable[0] != 0:  # only this process knows the reason
            reporter.note(damaged[step])
    if damaged and newer_than is None:
        raise UserError(_none_left(checkpoints, damaged))
    if me == 0:
        _tell({**unlisted, **damaged}, reporter)
    return None


def _newest_here(
    checkpoints: CheckpointFolder, read: Read[M], reporter: Reporter, newer_than: int | None
) -> tuple[int, tuple[M, Arrays]] | None:
    """Return the step and the contents of the newest checkpoint that `read` can read here; None if there is none."""
    candidates, damaged, unlisted = _candidates(checkpoints, newer_than)
    for step in candidates:
        reporter.phase(Phase.RESTORE)
        try:
            contents = read(step)
        except DamagedCheckpointError as error:
            damaged[step] = str(error)
            continue
        _conclude(checkpoints, step, damaged, unlisted, reporter)
        return step, contents
    if damaged and newer_than is None:
        raise UserError(_none_left(checkpoints, damaged))
    _tell({**unlisted, **damaged}, reporter)
    return None


def _tell(damaged: dict[int, str], reporter: Reporter) -> None:
    for reason in damaged.values():
        reporter.note(reason)


def _candidates(
    checkpoints: CheckpointFolder, newer_than: int | None
) -> tuple[Iterator[int], dict[int, str], dict[int, str]]:
    """Return the steps to try: the newest first, but those without a manifest last, or not at all beside one in memory.

    Returns also, with the reasons, the paths that cannot be checkpoints, and the checkpoints without a manifest.
    """
    steps = [step for step in checkpoints.steps() if newer_than is None or step > newer_than]
    damaged = {step: f"checkpoint {step} is not valid: steps are below 2^31" for step in steps if step > _LAST_STEP}
    valid = [step for step in steps if step <= _LAST_STEP]
    unlisted = {step: no_manifest(step) for step in valid if checkpoints.has_no_manifest(step)}
    order = [step for step in valid if step not in unlisted] + ([*unlisted] if newer_than is None else [])
    return iter(order), damaged, unlisted


def _conclude(
    checkpoints: CheckpointFolder, step: int, damaged: dict[int, str], unlisted: dict[int, str], reporter: Reporter
) -> None:
    """Rename what could not be used before the step that was restored. Called on process 0 only."""
    if step in unlisted:
        reporter.note(f"checkpoint {step} has no manifest, so it was not verified")
    newer = {other: reason for other, reason in unlisted.items() if other > step}
    _set_aside(checkpoints, {**newer, **damaged}, step, reporter)


def _set_aside(checkpoints: CheckpointFolder, damaged: dict[int, str], restored: int, reporter: Reporter) -> None:
    for step, reason in damaged.items():
        kept = checkpoints.set_aside(step)
        reporter.note(
            f"{reason}; the run continues from the one of step {restored}, and the damaged one is kept as {kept}"
        )


def _none_left(checkpoints: CheckpointFolder, damaged: dict[int, str]) -> str:
    rows = list(damaged.values())
    advice = f"bring a good copy of the files to {checkpoints.directory}, or choose another --workdir to start anew"
    paths = [checkpoints.path(step) / FROZEN for step in damaged]
    if any(f"{path}/" in reason for path, reason in zip(paths, rows, strict=True)) and any(map(_is_shared, paths)):
        advice = (
            f"the checkpoints of a run share the files in {FROZEN}/, those of the parameters that are not trained, so a "
            f"damaged one damages them all; {advice}, with `init_from` from the published model"
        )
    return "\n".join(
        [
            f"there is no checkpoint left that can be read: {rows[0]}",
            *first_rows(rows[1:], 7),
            advice,
        ]
    )


def _is_shared(folder: Path) -> bool:
    """Return whether a file in the folder has several hard links."""
    return any(path.is_file() and path.lstat().st_nlink > 1 for path in folder.rglob("*"))
