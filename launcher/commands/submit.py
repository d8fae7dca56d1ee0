"""`podrun --slurm=partition=gpu,time=2:00:00 train.yaml`: submit a run to a queue, from outside a job."""

from __future__ import annotations

import json

from podrun.runtime.contract import ExitCode

from ..plan.spec import RunSpec
from ..pod.errors import Mistakes
from ..pod.secret_values import read_secrets
from ..request.queue_options import Submission, with_queue_options
from ..request.request import Request, make_spec
from ..run.pack import with_code
from ..run.signals import unless_interrupted
from ..rundir.queues import Queue
from ..rundir.runs import RunDirectory
from ..rundir.submitted import pending_words
from .compile_ahead import compile_ahead


def submit(request: Request, name: str) -> int:
    """Submit the run to the queue of that name, and return immediately. Raises UserError with all mistakes before that."""
    submission, spec = _resolve(request, name)
    queue = submission.queue
    spec, bundles = with_code(spec)
    read_secrets(spec.pod)
    arguments = queue.arguments(spec, submission.options, request.label.name or request.name)
    if request.dry_run:
        record, text = queue.preview(spec, arguments)
        print(json.dumps(record, indent=1) if request.json else text)
        return ExitCode.DONE
    directory = queue.submit(spec, bundles, arguments)
    _say(queue, name, directory, request.json)
    compiling = compile_ahead(request, spec.pod.slice)
    if compiling and not request.json:
        print(compiling.words)
    return ExitCode.DONE


def _resolve(request: Request, name: str) -> tuple[Submission, RunSpec]:
    """Check the command line. Returns the submission and the run's spec. Raises UserError with all mistakes."""
    request.where.check_here()
    request, submission, problems = with_queue_options(request, name)
    mistakes = Mistakes()
    spec = mistakes.check(lambda: make_spec(request))
    if not request.dry_run:
        problems += submission.queue.mistakes(submission.options, spec.pod if spec else None)
    mistakes.texts[:0] = problems
    mistakes.raise_any()
    assert spec
    return submission, spec


def _say(queue: Queue, name: str, directory: RunDirectory, as_json: bool) -> None:
    run, job = directory.run_id, directory.job()
    if as_json:
        print(json.dumps({"run": run, f"{name}_job": job, "directory": str(directory.path)}))
        return
    words = unless_interrupted(lambda: pending_words(directory))
    print(
        f"podrun: {words or f'{run} is the {queue.title} job {job}'}\n"
        f"  podrun attach {run}    watch it\n  podrun status {run}    where it is in the queue\n"
        f"  podrun stop {run}      end it, or take it out of the queue"
    )
