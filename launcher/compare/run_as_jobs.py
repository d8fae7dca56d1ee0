"""Run the variants as jobs of a queue, each as soon as it gets nodes."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TextIO

from podrun.runtime.contract import ExitCode, UserError

from ..plan.spec import RunSpec
from ..pod.run_id import new_run_id
from ..request.queue_options import Submission
from ..run.signals import Signals
from ..rundir.queues import Queue, QueueError, UnknownSubmissionError
from ..rundir.runs import RunDirectory
from ..rundir.submitted import end_of, is_pending, is_unfinished, pending_words
from .collect import collect
from .comparison import Comparison
from .files import Files
from .table import Measurement, VariantState
from .variants import Variant

_POLL = 1.0  # seconds between two polls of the runs' records
_REPEAT_PROGRESS = 60.0  # seconds after which the progress is printed again
_STOP_TIMEOUT = 180.0  # seconds for stopped jobs to end; a save in progress may take a minute


@dataclass
class _Job:
    """A submitted variant."""

    variant: Variant
    spec: RunSpec
    directory: RunDirectory
    queue: Queue
    begun: bool = False
    ended: bool = False

    def poll(self, say: Callable[[str], None]) -> None:
        """Read the new records of the job, and print new events."""
        if not self.begun and (start := self.directory.start()):
            self.begun = True
            say(f"{self.variant.label}: {self.directory.run_id} runs on {', '.join(start['hosts'])}")
        if not is_unfinished(self.directory) and (end := end_of(self.directory)):
            self.ended = True
            say(f"{self.variant.label}: {end['message']}")

    def stop(self, now: bool, say: Callable[[str], None]) -> None:
        job = self.directory.job()
        try:
            if job is not None:
                self.queue.end([(self.directory, job)], now)
        except QueueError as error:
            say(f"{self.variant.label}: cannot end the {self.queue.title} job {job}: {error}")

    def measured(self, files: Files) -> Measurement:
        """Return its measurements, read from its workdir through `files`."""
        if self.ended:
            return collect(self.variant, self.spec, self.directory, files)
        state, reason, workdir = VariantState.INTERRUPTED, "it goes on without this comparison", str(self.spec.workdir)
        return Measurement(self.variant, state, reason, ExitCode.FAILED, self.directory.run_id, workdir)


def run_as_jobs(
    comparison: Comparison, submission: Submission, *, quiet: bool, ended: Callable[[Measurement], None]
) -> list[Measurement]:
    """Submit every variant, wait until all have ended, and return the measurements in the variants' order.

    A failed variant does not stop the others. Ctrl-C cancels queued jobs and stops running ones. If the terminal is lost, the
    jobs continue without this process. `ended` is called with the measurements of each run when it has ended.
    Raises UserError if the queue rejects the first job.
    """
    with Signals() as signals:
        jobs = _Jobs(comparison, submission, signals, sys.stderr if quiet else sys.stdout, ended)
        jobs.run()
    return jobs.measured()


class _Jobs:
    """The jobs of a comparison."""

    def __init__(
        self,
        comparison: Comparison,
        submission: Submission,
        signals: Signals,
        out: TextIO,
        ended: Callable[[Measurement], None],
    ) -> None:
        self._comparison = comparison
        self._submission = submission
        self._signals = signals
        self._out = out
        self._ended = ended
        self._told_at = 0.0
        self._waiting = deque(comparison.jobs)
        """Variants that are not submitted yet."""
        self._jobs: list[_Job] = []
        self._refused: dict[str, Measurement] = {}
        self._full_at: int | None = None  # number of ended jobs when the queue last rejected one
        self._stopped = 0  # number of the user's stop requests handled
        self._deadline = float("inf")

    def run(self) -> None:
        """Submit the variants as the queue accepts them, and wait until all have ended.

        Raises UserError if the queue rejects the first one.
        """
        while True:
            self._submit()
            if not (self._going or self._waiting):
                return
            if signal.SIGHUP in self._signals.received:
                return  # the output is closed; the jobs continue
            if len(self._signals.received) > self._stopped:
                self._stop()
            for job in self._going:
                job.poll(self._say)
                if job.ended:
                    self._ended(job.measured(self._comparison.files))
            if time.monotonic() > self._deadline:
                self._name_unended()
                return
            if time.monotonic() > self._told_at + _REPEAT_PROGRESS:
                self._say(", ".join(f"{count} {state}" for state, count in Counter(map(_state, self._jobs)).items()))
            if self._going:
                time.sleep(_POLL)

    def measured(self) -> list[Measurement]:
        """Return the measurements of all variants, in their order."""
        results = {job.variant.label: job.measured(self._comparison.files) for job in self._jobs} | self._refused
        code = 128 + self._signals.received[0] if self._signals.received else None
        return [
            results.get(variant.label)
            or Measurement(variant, VariantState.NOT_RUN, code=code, workdir=str(spec.workdir))
            for variant, spec in self._comparison.jobs
        ]

    @property
    def _going(self) -> list[_Job]:
        return [job for job in self._jobs if not job.ended]

    def _say(self, text: str) -> None:
        self._told_at = time.monotonic()
        print(text, file=self._out, flush=True)

    def _submit(self) -> None:
        """Submit variants until the queue rejects one. The rejected one is tried again when a job has ended."""
        ended = len(self._jobs) - len(self._going)
        queue = self._submission.queue
        while self._waiting and not self._signals.received and self._full_at != ended:
            variant, planned = self._waiting[0]
            spec = replace(planned, run_id=new_run_id())
            words = queue.arguments(spec, self._submission.options, self._comparison.name)
            try:
                directory = queue.submit(spec, self._comparison.bundles, words)
            except UserError as error:
                if not self._signals.received:  # Ctrl-C also stops submitting
                    self._refuse(variant, spec, error, ended)
                continue
            self._waiting.popleft()
            self._jobs.append(_Job(variant, spec, directory, queue))
            words_of_queue = pending_words(directory) or f"{spec.run_id} is the {queue.title} job {directory.job()}"
            self._say(f"{variant.label}: {words_of_queue}")

    def _refuse(self, variant: Variant, spec: RunSpec, error: UserError, ended: int) -> None:
        """Keep a rejected variant for later if other jobs are running, otherwise give it up.

        One that the queue may have taken is never submitted again, because two jobs would then write to one workdir.
        Raises UserError if no job was submitted before. `ended`: number of jobs that have ended.
        """
        if not self._jobs:
            raise error
        reason = str(error).partition("\n")[0]
        is_unknown = isinstance(error, UnknownSubmissionError)
        if self._going and not is_unknown:
            self._full_at = ended
            self._say(f"{variant.label}: {reason}; podrun tries again when another variant has ended")
            return
        self._say(f"{variant.label}: {reason}")
        self._waiting.popleft()
        workdir = str(spec.workdir)
        self._refused[variant.label] = Measurement(
            variant,
            VariantState.FAILED,
            reason,
            ExitCode.BAD_CONFIG,
            spec.run_id if is_unknown else None,
            workdir=workdir,
        )

    def _stop(self) -> None:
        """Stop all jobs. Running ones save first, unless the user has asked twice."""
        self._stopped = len(self._signals.received)
        self._waiting.clear()
        if self._going:
            self._say(
                "stopping all; those that run save first" if self._stopped == 1 else "stopping all, without saving"
            )
        for job in self._going:
            job.stop(self._stopped > 1, self._say)
        self._deadline = time.monotonic() + _STOP_TIMEOUT

    def _name_unended(self) -> None:
        for job in self._going:
            run = job.directory.run_id
            self._say(f"{job.variant.label}: has not ended; `podrun stop --now {run}` does not wait for saves")


def _state(job: _Job) -> str:
    return "ended" if job.ended else "in the queue" if is_pending(job.directory) else "running"
