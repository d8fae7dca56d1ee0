"""`podrun evaluate`: compute the validation metrics of a trained model, in one process on this machine, or on a pod."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.config import bucket_url
from podrun.runtime.contract import Evaluation, ExitCode, UserError
from podrun.runtime.events import EventKind
from podrun.runtime.queries import EvaluateAnswer, EvaluateQuery

from ..inventory.pod_request import PodRequest
from ..plan.spec import Label, RunSpec
from ..request.query_process import QueryError, QueryProcess, query_environment
from ..request.queue_options import queue_name
from ..request.request import Request, make_spec
from ..run.attempts import run_attempts
from ..rundir.runs import RunDirectory
from ..view.console import QuietConsole
from ..view.evaluation import evaluation_text
from ..view.live_console import make_console
from ..view.waiting import waiting
from .model_source import ModelSource, Step, job_of, model_here

if TYPE_CHECKING:
    from ..staging.bundle import Bundle

_SECTIONS = ("parallel", "launch")
"""Sections of the job that may differ on another pod."""


@dataclass(frozen=True)
class EvaluateRequest:
    """Command line of `podrun evaluate`.

    Attributes:
        target: where the model is, as `model_here` and `job_of` take it.
        data: a file, folder or pattern; None: the data of the run.
        tokenizer: a tokenizer.json, for a model that has none.
        metrics: names of the metrics to show; none: all.
        json: print the report as JSON.
        where: the pod.
        tasks: tasks of lm-evaluation-harness; none: the model is evaluated on data.
        limit: number of examples of each task; None: all.
        overrides: keys of the job that differ on the pod.
        command: arguments of podrun, as typed.
    """

    target: str | None
    step: Step
    data: str | None
    tokenizer: Path | None
    metrics: tuple[str, ...]
    json: bool
    where: PodRequest
    tasks: tuple[str, ...] = ()
    limit: int | None = None
    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def evaluate(request: EvaluateRequest) -> int:
    """Print the metrics, and return podrun's exit code. Raises UserError; UnavailableError if a bucket is unreachable."""
    _check_tasks(request)
    if request.where.names_pod:
        return _evaluate_on_pod(request)
    if request.overrides:
        raise UserError(
            f"{request.overrides[0]}: keys of a job are for a pod; name one, such as --slice cpu-2x2 --simulate, or leave "
            "them out"
        )
    with model_here(request.target, request.step) as source:
        return _evaluate_here(request, source)


def _check_tasks(request: EvaluateRequest) -> None:
    """Raise UserError for options that do not go together with tasks of lm-evaluation-harness."""
    if request.limit is not None and not request.tasks:
        raise UserError("--limit is for --lm-eval; the number of batches of other data is `eval.batches` of the job")
    if request.tasks and request.data:
        raise UserError("--data and --lm-eval: tasks have their own data; give one of the two")
    if request.tasks and request.where.names_pod:
        raise UserError(
            "--lm-eval evaluates on this machine; leave out the options that name a pod, or evaluate on its data there"
        )


def _evaluate_here(request: EvaluateRequest, source: ModelSource) -> int:
    query: EvaluateQuery = {
        "folder": str(source.folder),
        "step": source.step,
        "data": _absolute(request.data),
        "tokenizer": str(request.tokenizer.absolute()) if request.tokenizer else None,
        "tasks": [os.path.abspath(task) if task.endswith((".yaml", ".yml")) else task for task in request.tasks],
        "limit": request.limit,
    }
    what = "answer" if request.tasks else "batch"
    process = QueryProcess(
        source.python, "podrun.runtime.evaluate", query_environment({}), "evaluated the model", source.cwd
    )
    try:
        with waiting(f"reading the model of {source.folder}") as change:

            def on_part(line: str) -> None:
                done, total = json.loads(line)
                change(f"evaluating: {what} {done:,} of {total:,}")

            answer = source.named(process.ask(query, on_part))
    except QueryError as error:
        print(f"podrun: the model cannot be evaluated: {error}", file=sys.stderr)
        return ExitCode.FAILED
    print(evaluation_text(EvaluateAnswer(**json.loads(answer)), request.metrics, request.json))
    return ExitCode.DONE


def _evaluate_on_pod(request: EvaluateRequest) -> int:
    """Evaluate as a run: by the same launcher and agents, on a pod that is named as for training."""
    spec, bundles = _spec(request)
    directory = RunDirectory.create(spec)
    code = run_attempts(spec, directory, QuietConsole() if request.json else make_console(False), bundles)
    if code == ExitCode.DONE:
        print(evaluation_text(_answer(directory), request.metrics, request.json))
    return code


def _spec(request: EvaluateRequest) -> tuple[RunSpec, tuple[Bundle, ...]]:
    """Return the run that evaluates, and its code for the hosts. Raises UserError with all mistakes."""
    saved = job_of(request.target, request.step)
    from podrun.runtime.config.attention import with_kernel  # slow imports

    from ..request.train_file import with_overrides

    job = with_kernel(
        with_overrides(saved.job.for_evaluation(), request.overrides, _SECTIONS), "auto"
    )  # it may name one of other devices
    typed = Request(None, where=request.where, workdir=saved.workdir, command=request.command)
    if queue := queue_name(typed):
        raise UserError(
            f"--{queue} submits a run and returns, and an evaluation has a result to wait for; evaluate on hosts that you "
            "have, such as those of a job of yours (--hosts-from), or on this machine"
        )
    spec = make_spec(typed, of_run=job, folder=saved.folder)
    is_here = spec.pod.traits.files_are_here
    spec = replace(
        spec,
        cwd=saved.cwd or spec.cwd,
        label=Label(name=f"evaluate {spec.workdir.name}"),
        evaluation=Evaluation(
            saved.step,
            _absolute(request.data) if is_here else request.data,
            str(request.tokenizer.absolute() if is_here else request.tokenizer) if request.tokenizer else None,
        ),
    )
    if not spec.pod.traits.needs_staging:
        return spec, ()
    from ..run.pack import with_code

    return with_code(spec)


def _answer(directory: RunDirectory) -> EvaluateAnswer:
    """Return the result that process 0 has reported. Raises UserError if the record lacks it."""
    for event in reversed([*directory.read_events()]):
        if event["event"] == EventKind.EVALUATED:
            return EvaluateAnswer(**{field.name: event[field.name] for field in fields(EvaluateAnswer)})
    raise UserError(f"the record of the evaluation, {directory.events}, has no result; was the disk full?")


def _absolute(path: str | None) -> str | None:
    if path is None or bucket_url.url(Path(path)):
        return path
    return os.path.abspath(os.path.expanduser(path))
