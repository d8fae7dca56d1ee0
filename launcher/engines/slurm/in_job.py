"""Supervise a submitted run inside its SLURM job, at each start of the job."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from podrun.runtime.contract import ExitCode

from ...inventory.find import find_pod
from ...inventory.pod_request import PodRequest
from ...pod.pod import Pod
from ...pod.run_id import task_of
from ...run.in_job import continue_in, recorded_options, report_start, supervise_in_job
from ...rundir.runs import RunDirectory
from .batch import nodes_to_exclude, requeue, submit_next
from .inventory import ThisJob
from .job import SlurmError
from .job_time import SlurmJobTime

if TYPE_CHECKING:
    from ...inventory.base import Listing
    from ...remote.prestart import Prestart


def supervise(directory: RunDirectory, nodes: Listing | None = None, prestarted: Prestart | None = None) -> int:
    """Start or continue a submitted run on the nodes of this job, and return its exit code. Raises UserError.

    Args:
        directory: the run.
        nodes: the job's nodes, if SLURM has been asked already.
        prestarted: agents that have been started on them.
    """
    job, script = _listed_id(directory), str(directory.job_script)
    pod = _on_nodes(directory.spec().pod, nodes)
    options = recorded_options(directory)
    job_time = SlurmJobTime(
        directory, job, lambda node: nodes_to_exclude(job, node, options, script) if options else ""
    )
    code = supervise_in_job(directory, job, pod, job_time, prestarted)
    onward = job_time.onward
    if onward is None:
        return code
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SLURM sends it as soon as the job is requeued
    try:
        requeue(job, onward.excluded)
    except SlurmError as error:  # as with `no-requeue`
        refused = f"SLURM does not requeue the job {job} ({error})"
        return continue_in(
            directory, "SLURM", onward, refused, lambda: _submit_again(directory, job, options, onward.excluded)
        )
    return ExitCode.DONE


def _submit_again(directory: RunDirectory, job: str, options: Sequence[str], excluded: str) -> str:
    """Submit another job that continues the run, and return its id. Raises SlurmError."""
    if not options:
        raise SlurmError(f"{directory.job_options} is missing, or damaged")
    following, task = submit_next(job, options, str(directory.job_script), excluded), task_of(directory.run_id)
    return following if task is None else f"{following}_{task.number}"


def _listed_id(directory: RunDirectory) -> str:
    """Return the id of this job; for a task of an array `ARRAY_TASK`, since the array has the same id as its last task."""
    task, array = task_of(directory.run_id), os.environ.get("SLURM_ARRAY_JOB_ID", "")
    return f"{array}_{task.number}" if task is not None and array else os.environ.get("SLURM_JOB_ID", "")


def _on_nodes(pod: Pod, known: Listing | None) -> Pod:
    """Return the pod with the nodes of this job. Raises UserError if they are not what the slice needs."""
    nodes = find_pod(PodRequest(pod.slice.name, inventories={"slurm": ThisJob(len(pod.spares), known)}))
    return replace(pod, hosts=nodes.hosts, spares=nodes.spares, queue_job=nodes.queue_job)


def supervise_and_report(directory: RunDirectory, nodes: Listing | None, prestarted: Prestart | None) -> int:
    """Supervise the run, and return this process's exit code. If the run cannot start, print and record why."""
    return report_start(directory, lambda: supervise(directory, nodes, prestarted))
