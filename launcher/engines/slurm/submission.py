"""Submit a run to SLURM, and end a submitted run."""

from __future__ import annotations

import json
import pickle
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from podrun.runtime.contract import UserError

from ...plan.agent_file import agent_command
from ...plan.spec import RunSpec
from ...pod.home import podrun_home
from ...pod.run_id import unit_of
from ...run.signals import one_interrupt
from ...rundir.queues import UnknownSubmissionError
from ...rundir.runs import RunDirectory
from ...rundir.work_tree import note_work_tree
from ...staging.bundle import Bundle
from .bad_nodes import without_bad_nodes
from .batch import (
    JOB_CACHE,
    SBATCH_TIMEOUT,
    NotCancelled,
    UnknownJob,
    cancel_pending,
    signal_scripts,
    submit,
    take_back,
)
from .batch_script import array_option, batch_options, batch_script, may_take_whole_nodes, output_pattern
from .gpus_of_nodes import gpus_of_nodes
from .job import Interrupted, SlurmError
from .job_start import AGENTS
from .options import BatchOptions
from .srun import recorded_agents
from .transport import SlurmTransport

_NAME = 60  # characters of a job name
_TERMINATED = 128 + signal.SIGTERM


def make_script(spec: RunSpec) -> str:
    """Return the batch script of a run."""
    argv = [sys.executable, "-m", "podrun.launcher.engines.slurm.job_start"]
    return batch_script(spec.run_id, spec.command, spec.cwd, podrun_home(), argv)


def sbatch_arguments(spec: RunSpec, options: BatchOptions, name: str) -> list[str]:
    """Return the arguments of sbatch for a run. `name` becomes part of the job's name."""

    output = output_pattern(podrun_home(), spec.run_id)
    gpus = spec.pod.slice.devices_per_host
    whole_nodes = may_take_whole_nodes(options, spec.pod) and gpus_of_nodes(options) == {gpus}

    def words(options: BatchOptions) -> list[str]:
        return batch_options(options, spec.pod, f"podrun-{name}"[:_NAME], output, whole_nodes)

    return words(without_bad_nodes(options, spec.pod, words, _tell))


def preview(spec: RunSpec, words: Sequence[str], tasks: int) -> tuple[Mapping[str, object], str]:
    """Return what would be submitted: as values for JSON, and as a command line for people.

    `tasks`: number of tasks of an array; 0: a single run.
    """
    script = make_script(spec)
    words = [*words, *([array_option(0, tasks - 1)] if tasks else [])]
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
    (directory,) = _submit([spec], bundles, words, [list(words)], lambda job: [job])
    return directory


def submit_array(
    specs: Sequence[RunSpec], bundles: Sequence[Bundle], words: Sequence[str], at_once: int | None
) -> list[RunDirectory]:
    """Submit runs as the tasks of one job array, and return their directories.

    Args:
        specs: the runs; their ids are those of tasks of one array.
        bundles: their code.
        words: arguments of sbatch for one of them.
        at_once: number of tasks that may run at once; None: no limit.

    Raises:
        UserError: SLURM refuses the job, or a run directory cannot be written. The directories are removed.
    """
    numbers = range(len(specs))
    array = array_option(0, len(specs) - 1, at_once)
    again = [[*words, array_option(number, number)] for number in numbers]  # if SLURM does not requeue a task
    return _submit(specs, bundles, [*words, array], again, lambda job: [f"{job}_{number}" for number in numbers])


def _submit(
    specs: Sequence[RunSpec],
    bundles: Sequence[Bundle],
    words: Sequence[str],
    again: Sequence[Sequence[str]],
    jobs: Callable[[str], Sequence[str]],
) -> list[RunDirectory]:
    """Write the directories of runs, and submit them as one job.

    Args:
        specs: the runs.
        bundles: their code.
        words: arguments of sbatch.
        again: for each run the arguments with which it alone is submitted again.
        jobs: returns the job id of each run, from the answer of sbatch.

    Raises:
        UserError: as `submit_run`.
        KeyboardInterrupt: Ctrl-C; the job is cancelled, or the user is told that it is not.
    """
    directories: list[RunDirectory] = []
    code, script = pickle.dumps(list(bundles)), make_script(specs[0]).encode()
    with one_interrupt():
        try:
            for spec, options in zip(specs, again, strict=True):
                directories.append(directory := RunDirectory.create(spec))
                if directory == directories[0]:
                    directory.write(directory.bundles, code)
                else:
                    _link(directories[0].bundles, directory.bundles)
                directory.write(directory.job_script, script)
                directory.write(directory.job_options, json.dumps(list(options)).encode())
                if not spec.pod.container and len(spec.pod.hosts) <= SlurmTransport.window:
                    argv = agent_command(spec.pod, "run", spec.run_id)
                    directory.write(directory.path / AGENTS, recorded_agents(len(spec.pod.hosts), argv))
                directory.events.touch(mode=0o600)
            _submit_and_record(directories, words, jobs)
        except NotCancelled as error:  # its runs go on, so their records stay
            if error.job:
                _record(directories, jobs(error.job))
            _tell(str(error))
            raise KeyboardInterrupt from None
        except UnknownJob as error:  # its runs may begin, so their records stay
            raise UnknownSubmissionError(
                f"it is unknown whether SLURM has taken the job: {error}\n`squeue --me` lists it if so, and it begins as the "
                f"run {unit_of(specs[0].run_id)}, which `podrun ps` lists; otherwise submit it again"
            ) from None
        except SlurmError as error:
            _remove(specs)
            raise UserError(f"SLURM has not taken the job: {error}") from None
        except (KeyboardInterrupt, UserError):
            _remove(specs)
            raise
        except OSError as error:
            _remove(specs)
            raise UserError(f"cannot write {error.filename or podrun_home()}: {error.strerror}") from None
    note_work_tree([directory.work_tree for directory in directories], specs[0].cwd)
    return directories


def _submit_and_record(
    directories: Sequence[RunDirectory], words: Sequence[str], jobs: Callable[[str], Sequence[str]]
) -> None:
    """Submit the job, and record its id in the directories. Raises SlurmError; KeyboardInterrupt if it is cancelled."""
    script, job = str(directories[0].job_script), ""
    try:
        job = submit(words, script, _report_wait)
        _record(directories, jobs(job))
    except KeyboardInterrupt as interrupt:
        known = interrupt.answer if isinstance(interrupt, Interrupted) else job
        if cancelled := take_back(script, known):
            _tell(f"the SLURM job {cancelled} was submitted already, and is cancelled")
        raise KeyboardInterrupt from None


def _record(directories: Sequence[RunDirectory], jobs: Sequence[str]) -> None:
    with suppress(OSError):  # such as a full disk; the job records its id itself when it starts
        for directory, id in zip(directories, jobs, strict=True):
            directory.record_job(id)
    JOB_CACHE.forget()


def _link(source: Path, target: Path) -> None:
    """Make a hard link to a file, or a copy where the file system has none. Raises OSError."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
        target.chmod(0o600)


def end_jobs(runs: Sequence[tuple[RunDirectory, str]], now: bool) -> list[bool]:
    """End submitted runs: cancel pending jobs, and signal podrun in running ones. Raises SlurmError.

    However many runs there are, SLURM's programs are called a few times.

    Args:
        runs: the runs, each with its job.
        now: podrun in a running job ends the run without a save.

    Returns:
        For each run True if it has ended, False if podrun in its job is ending it.
    """
    cancel_pending([job for _, job in runs])
    JOB_CACHE.forget()
    running = []
    for directory, job in runs:
        state = JOB_CACHE.job(job)
        if state is None:
            raise SlurmError(
                "squeue does not answer, so it is unknown whether the job has ended; run the command again"
            )
        if not state.is_over:
            running.append(job)
        elif (end := directory.end()) is None or end["code"]:  # the end of an earlier attempt, if any
            what = f"its job {job} was still in the queue of SLURM, and is taken out of it"
            directory.record_end(what, _TERMINATED, stopped=True)
    ended = [job not in running for _, job in runs]
    for _ in range(2 if now else 1) if running else ():
        try:
            signal_scripts(running)
        except SlurmError:
            JOB_CACHE.forget()
            states = [JOB_CACHE.job(job) for job in running]
            if any(state is None or state.state == "RUNNING" for state in states):
                raise
            break  # they have ended meanwhile, perhaps after the first signal
        time.sleep(0.5)
    return ended


def _report_wait() -> None:
    what = f"SLURM has not taken the job yet: its queue may be full; podrun tries for {SBATCH_TIMEOUT:g} s"
    print(f"podrun: {what}", file=sys.stderr, flush=True)


def _tell(line: str) -> None:
    print(f"podrun: {line}", file=sys.stderr, flush=True)


def _remove(specs: Sequence[RunSpec]) -> None:
    """Remove the run directories, also one that is only begun."""
    for spec in specs:
        shutil.rmtree(podrun_home() / "runs" / spec.run_id, ignore_errors=True)
