"""SLURM's queue behind the interface that commands and the rooms below use. Submission is imported only when needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from podrun.runtime.contract import UserError

from ...plan.spec import RunSpec
from ...pod.pod import Pod
from ...rundir.queues import Queue
from ...rundir.runs import RunDirectory
from .batch import JOB_CACHE, Job, why_ended

if TYPE_CHECKING:
    from ...staging.bundle import Bundle
    from .options import BatchOptions


class SlurmQueue(Queue):
    """The queue of the cluster that this machine belongs to."""

    title = "SLURM"

    def job(self, job: str, submitted: float = 0.0) -> Job | None:
        return JOB_CACHE.job(job, submitted)

    def why_ended(self, job: str) -> str:
        return why_ended(job)

    def shell(self, job: str, node: str) -> str:
        return f"srun --jobid={job} --overlap --nodelist={node} --pty bash"

    def end(self, runs: Sequence[tuple[RunDirectory, str]], now: bool) -> list[bool]:
        from .submission import end_jobs

        return end_jobs(runs, now)

    def options(self, typed: str) -> tuple[BatchOptions, list[str]]:
        from .options import BatchOptions, parse_options

        try:
            return parse_options(typed), []
        except UserError as error:
            return BatchOptions(()), [str(error)]

    def mistakes(self, options: BatchOptions, pod: Pod | None) -> list[str]:
        from .checks import queue_mistakes

        return queue_mistakes(options, pod)

    def arguments(self, spec: RunSpec, options: BatchOptions, name: str) -> list[str]:
        from .submission import sbatch_arguments

        return sbatch_arguments(spec, options, name)

    def preview(self, spec: RunSpec, arguments: Sequence[str], tasks: int = 0) -> tuple[Mapping[str, object], str]:
        from .submission import preview

        return preview(spec, arguments, tasks)

    def submit(self, spec: RunSpec, bundles: Sequence[Bundle], arguments: Sequence[str]) -> RunDirectory:
        from .submission import submit_run

        return submit_run(spec, bundles, arguments)

    def submit_array(
        self, specs: Sequence[RunSpec], bundles: Sequence[Bundle], arguments: Sequence[str], at_once: int | None
    ) -> list[RunDirectory]:
        from .submission import submit_array

        return submit_array(specs, bundles, arguments, at_once)


QUEUE = SlurmQueue()
