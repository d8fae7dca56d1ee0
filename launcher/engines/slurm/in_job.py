"""Supervise a submitted run inside its SLURM job, at each start of the job."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from podrun.runtime.contract import ExitCode, UserError, failure_code

from ...inventory.find import find_pod
from ...inventory.pod_request import PodRequest
from ...pod.pod import Pod
from ...run.attempts import run_attempts
from ...run.job_time import Onward
from ...run.pack import add_programs
from ...rundir.runs import RunDirectory
from ...staging.bundle import Bundle
from ...view.live_console import make_console
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
    spec = directory.spec()
    job = os.environ.get("SLURM_JOB_ID", "")
    pod = _on_nodes(spec.pod, nodes)
    spec, programs = add_programs(replace(spec, pod=pod))  # compiled while the job was in the queue
    directory.record_job(job)  # the user may have submitted the script again
    directory.write_spec(spec)
    options = _options(directory)
    job_time = SlurmJobTime(
        directory, job, lambda node: nodes_to_exclude(job, node, options, str(directory.job_script)) if options else ""
    )
    bundles = [*(bundle for bundle in _bundles(directory) if bundle.kind != "programs"), *programs]
    code = run_attempts(spec, directory, make_console(False), bundles, transport=prestarted, job_time=job_time)
    if job_time.onward is None:
        return code
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SLURM sends it as soon as the job is requeued
    try:
        requeue(job, job_time.onward.excluded)
    except SlurmError as error:
        return _submit_again(directory, job, options, job_time.onward, str(error))
    return ExitCode.DONE


def _options(directory: RunDirectory) -> list[str]:
    """Return the recorded arguments of sbatch; empty if they cannot be read."""
    try:
        return [str(word) for word in json.loads(directory.job_options.read_bytes())]
    except (OSError, ValueError, TypeError):
        return []


def _submit_again(directory: RunDirectory, job: str, options: Sequence[str], onward: Onward, refused: str) -> int:
    """Submit another job to continue the run, because SLURM refuses to requeue this one, as with `no-requeue`.

    Args:
        directory: the run.
        job: id of this job.
        options: arguments of sbatch.
        onward: why the run leaves this job, and which nodes to exclude.
        refused: why SLURM refuses.

    Returns:
        The exit code of this job.
    """
    try:
        if not options:
            raise SlurmError(f"{directory.job_options} is missing, or damaged")
        following = submit_next(job, options, str(directory.job_script), onward.excluded)
    except SlurmError as error:
        back = f"SLURM does not requeue the job {job} ({refused})"
        what = f"{onward.why}; {back}, and refuses another job: {str(error).partition(chr(10))[0]}"
        directory.record_end(f"{what}; the same command goes on from the newest checkpoint", ExitCode.PREEMPTED)
        print(f"podrun: failed: {what} [exit code {int(ExitCode.PREEMPTED)}]", file=sys.stderr, flush=True)
        return ExitCode.PREEMPTED
    with suppress(OSError):  # such as a full disk; the job records its id itself when it starts
        directory.record_job(following)
    print(f"podrun: the SLURM job {following} continues after this one", flush=True)
    return ExitCode.DONE


def _on_nodes(pod: Pod, known: Listing | None) -> Pod:
    """Return the pod with the nodes of this job. Raises UserError if they are not what the slice needs."""
    nodes = find_pod(PodRequest(pod.slice.name, inventories={"slurm": ThisJob(len(pod.spares), known)}))
    return replace(pod, hosts=nodes.hosts, spares=nodes.spares, queue_job=nodes.queue_job)


def _bundles(directory: RunDirectory) -> Sequence[Bundle]:
    """Return the code bundles made when the run was submitted. Raises UserError."""
    try:
        bundles: list[Bundle] = pickle.loads(directory.bundles.read_bytes())
    except (OSError, pickle.UnpicklingError, EOFError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else f"it is damaged ({error})"
        raise UserError(f"cannot read the code of the run, {directory.bundles}: {why}") from None
    return bundles


def supervise_and_report(directory: RunDirectory, nodes: Listing | None, prestarted: Prestart | None) -> int:
    """Supervise the run, and return this process's exit code. If the run cannot start, print and record why."""
    try:
        code = int(supervise(directory, nodes, prestarted))
    except UserError as error:
        print(f"podrun: {error}", file=sys.stderr, flush=True)
        if directory.path.is_dir() and directory.supervisor() is None and directory.end() is None:
            directory.record_end(str(error).partition("\n")[0], ExitCode.BAD_CONFIG)
        code = int(ExitCode.BAD_CONFIG)
    return failure_code(code) if code else 0
