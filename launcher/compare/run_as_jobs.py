"""Run the variants as jobs of SLURM, each as soon as it has nodes."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from podrun.runtime.contract import ExitCode, UserError

from ..inventory.slurm_options import BatchOptions
from ..pod.run_id import new_run_id
from ..rundir.runs import RunDirectory
from ..rundir.spec import RunSpec
from ..rundir.submitted import end_of, goes_on, pending_words, waits
from ..supervise.signals import Signals
from ..supervise.submission import end_job, sbatch_words, submit_run
from ..transport.slurm.job import SlurmError
from .collect import collect
from .comparison import Comparison
from .table import Measurement, VariantState
from .variants import Variant

_LOOK = 1.0  # seconds between two looks at the records of the runs
_REMIND = 60.0  # seconds after which to say again how far they are
_PATIENCE = 180.0  # seconds for jobs to end that were asked to: a save that has begun may take a minute


@dataclass
class _Job:
    """A variant that was submitted."""

    variant: Variant
    spec: RunSpec
    directory: RunDirectory
    begun: bool = False
    ended: bool = False

    def look(self, say: Callable[[str], None]) -> None:
        """Find out how far it is, and say what is new."""
        if not self.begun and (start := self.directory.start()):
            self.begun = True
            say(f"{self.variant.name}: {self.directory.run_id} runs on {', '.join(start['hosts'])}")
        if not goes_on(self.directory) and (end := end_of(self.directory)):
            self.ended = True
            say(f"{self.variant.name}: {end['message']}")

    def stop(self, now: bool, say: Callable[[str], None]) -> None:
        job = self.directory.job()
        try:
            if job is not None:
                end_job(self.directory, job, now)
        except SlurmError as error:
            say(f"{self.variant.name}: cannot end the SLURM job {job}: {error}")


def run_as_jobs(comparison: Comparison, options: BatchOptions, *, quiet: bool) -> list[Measurement]:
    """Submit every variant, wait until all have ended, and return the measurements in the order of the variants.

    A variant that fails does not stop the others; Ctrl-C takes all out of the queue, and stops those that run. If the
    terminal is lost, the jobs go on without this process. Raises UserError if SLURM does not take the first one.
    """
    out = sys.stderr if quiet else sys.stdout

    def say(text: str) -> None:
        print(text, file=out, flush=True)

    with Signals() as signals:
        jobs, rest = _submit_all(comparison, options, signals, say)
        _wait(jobs, signals, say)
    measured = {job.variant.name: _measured(job, comparison) for job in jobs} | rest
    return [measured[variant.name] for variant, _ in comparison.jobs]


def _submit_all(
    comparison: Comparison, options: BatchOptions, signals: Signals, say: Callable[[str], None]
) -> tuple[list[_Job], dict[str, Measurement]]:
    """Return the jobs, and what there is to tell of variants that SLURM did not take. Raises UserError for the first."""
    jobs: list[_Job] = []
    rest: dict[str, Measurement] = {}
    for variant, planned in comparison.jobs:
        workdir = str(planned.workdir)
        if signals.received:
            code = 128 + signals.received[0]
            rest[variant.name] = Measurement(variant, VariantState.NOT_RUN, code=code, workdir=workdir)
            continue
        spec = replace(planned, run_id=new_run_id())
        try:
            directory = submit_run(spec, comparison.bundles, sbatch_words(spec, options, comparison.name))
        except UserError as error:
            if not jobs and not signals.received:  # Ctrl-C ends sbatch as well
                raise
            reason = str(error).partition("\n")[0]
            code = 128 + signals.received[0] if signals.received else ExitCode.BAD_CONFIG
            rest[variant.name] = Measurement(variant, VariantState.FAILED, reason, code, workdir=workdir)
            say(f"{variant.name}: {reason}")
            continue
        jobs.append(_Job(variant, spec, directory))
        say(f"{variant.name}: {pending_words(directory) or f'{spec.run_id} is the SLURM job {directory.job()}'}")
    return jobs, rest


def _wait(jobs: Sequence[_Job], signals: Signals, say: Callable[[str], None]) -> None:
    """Wait until all have ended, or until those that were asked to end have had their time."""
    asked = 0
    told_at = time.monotonic()
    deadline = float("inf")

    def say_now(text: str) -> None:
        nonlocal told_at
        told_at = time.monotonic()
        say(text)

    while going := [job for job in jobs if not job.ended]:
        if signal.SIGHUP in signals.received:
            return  # nobody reads any more; the jobs go on
        if len(signals.received) > asked:
            asked = len(signals.received)
            say_now("stopping all; those that run save first" if asked == 1 else "stopping all, without saving")
            for job in going:
                job.stop(asked > 1, say_now)
            deadline = time.monotonic() + _PATIENCE
        for job in going:
            job.look(say_now)
        if time.monotonic() > deadline:
            for job in [job for job in jobs if not job.ended]:
                say(
                    f"{job.variant.name}: has not ended; `podrun stop --now {job.directory.run_id}` does not wait for saves"
                )
            return
        if time.monotonic() > told_at + _REMIND:
            counts = Counter(_state(job) for job in jobs)
            say_now(", ".join(f"{count} {state}" for state, count in counts.items()))
        if not all(job.ended for job in jobs):
            time.sleep(_LOOK)


def _state(job: _Job) -> str:
    return "ended" if job.ended else "in the queue" if waits(job.directory) else "running"


def _measured(job: _Job, comparison: Comparison) -> Measurement:
    if not job.ended:
        return Measurement(
            job.variant,
            VariantState.INTERRUPTED,
            "it goes on without this comparison",
            ExitCode.FAILED,
            job.directory.run_id,
            str(job.spec.workdir),
        )
    return collect(job.variant, job.spec, job.directory, comparison.files)
