"""Submit a run to SLURM, and end a submitted run."""

from __future__ import annotations

import json
import pickle
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from podrun.runtime.contract import UserError

from ...plan.spec import RunSpec
from ...pod.home import podrun_home
from ...rundir.runs import RunDirectory
from ...rundir.work_tree import note_work_tree
from ...staging.bundle import Bundle
from .bad_nodes import without_bad_nodes
from .batch import JOB_CACHE, SBATCH_TIMEOUT, cancel_pending, signal_script, submit
from .batch_script import batch_options, batch_script
from .job import SlurmError
from .options import BatchOptions

_NAME = 60  # characters of a job name
_TERMINATED = 128 + signal.SIGTERM


def make_script(spec: RunSpec) -> str:
    """Return the batch script of a run."""
    directory = podrun_home() / "runs" / spec.run_id
    argv = [sys.executable, "-m", "podrun.launcher.engines.slurm.job_start", str(directory)]
    return batch_script(spec.run_id, spec.command, spec.cwd, podrun_home(), argv)


def sbatch_arguments(spec: RunSpec, options: BatchOptions, name: str) -> list[str]:
    """Return the arguments of sbatch for a run. `name` becomes part of the job's name."""
    output = RunDirectory(podrun_home() / "runs" / spec.run_id).job_output

    def words(options: BatchOptions) -> list[str]:
        return batch_options(options, spec.pod, f"podrun-{name}"[:_NAME], output)

    return words(without_bad_nodes(options, spec.pod, words, _tell))


def preview(spec: RunSpec, words: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """Return what would be submitted: as values for JSON, and as a command line for people."""
    script = make_script(spec)
    return {"sbatch": list(words), "script": script}, f"{shlex.join(['sbatch', *words])} <<'END'\n{script}END"


def submit_run(spec: RunSpec, bundles: Sequence[Bundle], words: Sequence[str]) -> RunDirectory:
    """Submit a run, and return its directory.

    Args:
        spec: the run.
        bundles: its code.
        words: arguments of sbatch.

    Raises:
        UserError: SLURM refuses the job, or the run directory cannot be written. The directory is removed.
    """
    directory = RunDirectory.create(spec)
    try:
        directory.write(directory.bundles, pickle.dumps(list(bundles)))
        directory.write(directory.job_script, make_script(spec).encode())
        directory.write(directory.job_options, json.dumps(list(words)).encode())
        directory.events.touch(mode=0o600)
        job = submit(words, str(directory.job_script), _report_wait)
    except SlurmError as error:
        _remove(directory)
        raise UserError(f"SLURM has not taken the job: {error}") from None
    except KeyboardInterrupt:  # while the queue is full
        _remove(directory)
        raise
    except OSError as error:
        _remove(directory)
        raise UserError(f"cannot write {error.filename or directory.path}: {error.strerror}") from None
    with suppress(OSError):  # such as a full disk; the job records its id itself when it starts
        directory.record_job(job)
    JOB_CACHE.forget()
    note_work_tree(directory.work_tree, spec.cwd)
    return directory


def end_job(directory: RunDirectory, job: str, now: bool) -> bool:
    """End a submitted run: cancel its pending job, or signal podrun in its running job. Raises SlurmError.

    Returns:
        True if the run has ended. False if podrun in the job is ending it: at once if `now`, otherwise after a save.
    """
    cancel_pending(job)
    JOB_CACHE.forget()
    state = JOB_CACHE.job(job)
    if state is None:
        raise SlurmError("squeue does not answer, so it is unknown whether the job has ended; run the command again")
    if state.is_over:
        if (end := directory.end()) is None or end["code"]:  # the end of an earlier attempt, if any
            what = f"its job {job} was still in the queue of SLURM, and is taken out of it"
            directory.record_end(what, _TERMINATED, stopped=True)
        return True
    for _ in range(2 if now else 1):
        try:
            signal_script(job)
        except SlurmError:
            JOB_CACHE.forget()
            state = JOB_CACHE.job(job)
            if state is None or state.state == "RUNNING":
                raise
            break  # it has ended meanwhile, perhaps after the first signal
        time.sleep(0.5)
    return False


def _report_wait() -> None:
    what = f"SLURM has not taken the job yet: its queue may be full; podrun tries for {SBATCH_TIMEOUT:g} s"
    print(f"podrun: {what}", file=sys.stderr, flush=True)


def _tell(line: str) -> None:
    print(f"podrun: {line}", file=sys.stderr, flush=True)


def _remove(directory: RunDirectory) -> None:
    shutil.rmtree(directory.path, ignore_errors=True)
