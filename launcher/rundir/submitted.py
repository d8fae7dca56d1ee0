"""Look after runs that were submitted to a queue: whether their job waits, runs, or has ended without a word of podrun's."""

from __future__ import annotations

import time

from podrun.runtime.contract import Event, EventKind, ExitCode

from .queues import QUEUES, Queue, QueuedJob, load_queue
from .runs import RunDirectory

_LATE = 15.0  # seconds from the end of a job to that of podrun's record, over a network's file system


def queue_of(directory: RunDirectory) -> Queue | None:
    """Return the queue that has the run's job; None for a run without one, or if its records do not say which."""
    name = None if directory.job() is None else directory.transport()
    return load_queue(name) if name is not None and name in QUEUES else None


def job_of(directory: RunDirectory) -> QueuedJob | None:
    """Return what the queue says of the run's job; None for a run without one, or if the queue does not answer here."""
    job, queue = directory.job(), queue_of(directory)
    return None if job is None or queue is None else queue.job(job, directory.job_recorded())


def waits(directory: RunDirectory) -> bool:
    """Return whether the run's job waits in the queue, for the first time or again."""
    return (state := job_of(directory)) is not None and state.is_pending


def goes_on(directory: RunDirectory) -> bool:
    """Return whether somebody supervises the run, or its job is still to start, or runs."""
    if directory.supervisor() is not None:
        return True
    if directory.job() is None:
        return False
    state = job_of(directory)
    if state is not None and state.is_ending and directory.end() is not None:
        return False
    return state is None or not state.is_over or (directory.end() is None and not _is_quiet(directory))


def is_final(directory: RunDirectory, event: Event) -> bool:
    """Return whether an event ends the run for certain: after a failure the job may be put back into its queue."""
    return event["event"] == EventKind.END and (event["code"] == 0 or directory.job() is None)


def end_of(directory: RunDirectory) -> Event | None:
    """Return the event that says how the run ended; None if it goes on.

    If its job is over and podrun has not said why, what the queue says is recorded: SLURM forgets jobs after minutes.
    An end after which the job was put back into the queue is none.
    """
    end = directory.end()
    job = directory.job()
    if job is None or directory.supervisor() is not None:
        return end
    if end is not None:
        return end if end["code"] == 0 or not waits(directory) else None
    state, queue = job_of(directory), queue_of(directory)
    if queue is None or state is None or not state.is_over or not _is_quiet(directory):
        return None
    end = directory.end()  # it may have come meanwhile
    if end is None and not waits(directory):
        why = queue.why_ended(job)
        hint = (
            "" if directory.start() or "cancelled" in why else f", and podrun has not begun: see {directory.job_output}"
        )
        directory.record_end(f"{why}{hint}", ExitCode.UNAVAILABLE)
        end = directory.end()
    return end


def _is_quiet(directory: RunDirectory) -> bool:
    """Return whether nothing was recorded lately: what a job's last moments were may still be on its way here."""
    try:
        return time.time() - directory.events.stat().st_mtime > _LATE or directory.start() is None
    except OSError:
        return True


def pending_words(directory: RunDirectory) -> str | None:
    """Return `RUN waits in the queue of SLURM as job 4711: ...` with the reason; None for a run that does not wait."""
    state, job, queue = job_of(directory), directory.job(), queue_of(directory)
    if state is None or job is None or queue is None or not state.is_pending:
        return None
    return f"{directory.run_id} waits in the queue of {queue.title} as job {job}: {state.why_pending(job)}"
