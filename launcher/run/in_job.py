"""Supervise a submitted run inside a job of a queue, at each start of the job. The queue's own part is its engine's."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from podrun.runtime.contract import ExitCode, UserError, failure_code

from ..pod.pod import Pod
from ..rundir.queues import QueueError
from ..rundir.runs import RunDirectory
from ..staging.bundle import Bundle
from ..view.live_console import make_console
from .attempts import run_attempts
from .job_time import JobTime, Onward

if TYPE_CHECKING:
    from ..transport.base import Transport


def supervise_in_job(
    directory: RunDirectory, job: str, pod: Pod, job_time: JobTime, prestarted: Transport | None = None
) -> int:
    """Start or continue a submitted run on the nodes of its job, and return its exit code.

    Args:
        directory: the run.
        job: the job's id.
        pod: the run's pod, with the nodes of this job.
        job_time: the time that the run has, and whether it continues in another job.
        prestarted: agents that have been started on the nodes.

    Raises:
        UserError: the run's code cannot be read, or `run_attempts` raises it.
    """
    spec = replace(directory.spec(), pod=pod)
    executables: tuple[Bundle, ...] = ()
    if spec.stored:
        from .pack import add_executables  # a program has none

        spec, executables = add_executables(spec)  # compiled while the job was in the queue
    directory.record_job(job)  # the user may have submitted the script again
    directory.write_spec(spec)
    bundles = [*(bundle for bundle in _bundles(directory) if bundle.kind != "programs"), *executables]
    return run_attempts(spec, directory, make_console(False), bundles, transport=prestarted, job_time=job_time)


def recorded_options(directory: RunDirectory) -> list[str]:
    """Return the arguments with which the run was submitted; empty if they cannot be read."""
    try:
        return [str(word) for word in json.loads(directory.job_options.read_bytes())]
    except (OSError, ValueError, TypeError):
        return []


def continue_in(directory: RunDirectory, queue: str, onward: Onward, refused: str, submit: Callable[[], str]) -> int:
    """Continue the run in a new job, since this one cannot be requeued, and return the exit code of this one.

    Args:
        directory: the run.
        queue: name of the queue in messages.
        onward: why the run leaves this job.
        refused: why this job cannot be requeued, as a phrase.
        submit: submits the new job and returns its id. Raises QueueError.
    """
    try:
        following = submit()
    except QueueError as error:
        what = f"{onward.why}; {refused}, and refuses another job: {str(error).partition(chr(10))[0]}"
        directory.record_end(f"{what}; the same command goes on from the newest checkpoint", ExitCode.PREEMPTED)
        print(f"podrun: failed: {what} [exit code {int(ExitCode.PREEMPTED)}]", file=sys.stderr, flush=True)
        return ExitCode.PREEMPTED
    with suppress(OSError):  # such as a full disk; the job records its id itself when it starts
        directory.record_job(following)
    print(f"podrun: the {queue} job {following} continues after this one", flush=True)
    return ExitCode.DONE


def _bundles(directory: RunDirectory) -> Sequence[Bundle]:
    """Return the code bundles made when the run was submitted. Raises UserError."""
    try:
        bundles: list[Bundle] = pickle.loads(directory.bundles.read_bytes())
    except (OSError, pickle.UnpicklingError, EOFError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else f"it is damaged ({error})"
        raise UserError(f"cannot read the code of the run, {directory.bundles}: {why}") from None
    return bundles


def report_start(directory: RunDirectory, supervise: Callable[[], int]) -> int:
    """Call `supervise`, and return this process's exit code. If the run cannot start, print and record why."""
    try:
        code = int(supervise())
    except UserError as error:
        print(f"podrun: {error}", file=sys.stderr, flush=True)
        if directory.path.is_dir() and directory.supervisor() is None and directory.end() is None:
            directory.record_end(str(error).partition("\n")[0], ExitCode.BAD_CONFIG)
        code = int(ExitCode.BAD_CONFIG)
    return failure_code(code) if code else 0
