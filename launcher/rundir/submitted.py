"""The state of submitted runs: whether their job waits, runs, or has ended without a record by podrun."""

from __future__ import annotations

import time
from typing import TypeGuard

from podrun.runtime.contract import ExitCode
from podrun.runtime.events import EventKind

from ..pod.traits import QUEUES
from .events import EndEvent, Event
from .lost_launcher import end_of_lost
from .queues import Queue, QueuedJob, load_queue
from .runs import RunDirectory

_LATE = 15.0  # seconds after a job's end until podrun's last records are visible on a network file system


def queue_of(directory: RunDirectory) -> Queue | None:
    """Return the queue of the run's job; None for a run without a job, or if its records do not name the queue."""
    name = None if directory.job() is None else directory.transport()
    return load_queue(name) if name is not None and name in QUEUES else None


def job_of(directory: RunDirectory) -> QueuedJob | None:
    """Return the state of the run's job; None for a run without a job, or if the queue does not answer."""
    job, queue = directory.job(), queue_of(directory)
    return None if job is None or queue is None else queue.job(job, directory.job_recorded())


def is_pending(directory: RunDirectory) -> bool:
    """Return whether the run's job waits in the queue, perhaps after it was requeued."""
    return (state := job_of(directory)) is not None and state.is_pending


def is_unfinished(directory: RunDirectory) -> bool:
    """Return whether the run has a supervisor, or its job is pending or running."""
    if directory.supervisor() is not None:
        return True
    if directory.job() is None:
        return False
    state = job_of(directory)
    if state is not None and state.is_ending and directory.end() is not None:
        return False
    return state is None or not state.is_over or (directory.end() is None and not _is_quiet(directory))


def is_final(event: Event, directory: RunDirectory) -> TypeGuard[EndEvent]:
    """Return whether an event certainly ends the run. After a failure it does not, because the job may be requeued."""
    return event["event"] == EventKind.END and (event["code"] == 0 or directory.job() is None)


def end_of(directory: RunDirectory) -> EndEvent | None:
    """Return the event of the run's end; None if the run continues, perhaps in a job that was requeued.

    If its job has ended and podrun has recorded no end, this records the queue's reason: SLURM forgets jobs after
    minutes. It also records the end of a run on this machine whose launcher and processes are gone.
    """
    end = directory.end()
    job = directory.job()
    if directory.supervisor() is not None:
        return end
    if job is None:
        return end or end_of_lost(directory)
    if end is not None:
        return end if end["code"] == 0 or not is_pending(directory) else None
    state, queue = job_of(directory), queue_of(directory)
    if queue is None or state is None or not state.is_over or not _is_quiet(directory):
        return None
    end = directory.end()  # podrun may have recorded it meanwhile
    if end is None and not is_pending(directory):
        why = queue.why_ended(job)
        hint = (
            "" if directory.start() or "cancelled" in why else f", and podrun has not begun: see {directory.job_output}"
        )
        directory.record_end(f"{why}{hint}", ExitCode.UNAVAILABLE)
        end = directory.end()
    return end


def _is_quiet(directory: RunDirectory) -> bool:
    """Return whether nothing was recorded lately. If something was, records of the job's end may soon become visible here."""
    try:
        return time.time() - directory.events.stat().st_mtime > _LATE or directory.start() is None
    except OSError:
        return True


def pending_words(directory: RunDirectory) -> str | None:
    """Return why a run waits, such as `RUN waits in the queue of SLURM as job 4711: ...`; None if it does not wait."""
    state, job, queue = job_of(directory), directory.job(), queue_of(directory)
    if state is None or job is None or queue is None or not state.is_pending:
        return None
    return f"{directory.run_id} waits in the queue of {queue.title} as job {job}: {state.why_pending(job)}"
