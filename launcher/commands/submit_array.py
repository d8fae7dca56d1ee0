"""`podrun --slurm=OPTIONS --array LR=1e-3,1e-4 -- PROGRAM`: submit a run for each value, as the tasks of one job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.wording import counted

from ..compare.specs import check_all, with_same_code
from ..compare.variants import AxisOption, Variant, find_variants, is_variable
from ..plan.spec import RunSpec
from ..pod.run_id import new_run_id, task_run_id
from ..pod.secret_values import read_secrets
from ..request.queue_options import Submission, with_queue_options
from ..request.request import Request
from ..run.signals import unless_interrupted
from ..rundir.queues import Queue
from ..rundir.runs import RunDirectory
from ..rundir.submitted import pending_words

_ARRAY = AxisOption("--array", "for example --array optimizer.learning_rate=1e-3,1e-4", 1, 1000)
_LISTED = 20  # runs named after the submission


def submit_array(request: Request, name: str, array: Sequence[str], at_once: int | None) -> int:
    """Submit a run for each combination of the values, and return immediately. Raises UserError with all mistakes before.

    Args:
        request: the command line of the job.
        name: the queue.
        array: the `--array` options, as typed.
        at_once: number of tasks that may run at once; None: no limit.
    """
    request.where.check_here()
    if request.compile_ahead:
        raise UserError("--compile-ahead is for a single run; leave it out with --array")
    variants = find_variants(array, request.overrides, axes_of=_ARRAY)
    request, submission, problems = with_queue_options(request, name)
    specs = check_all(request, variants, _request_of, problems)
    queue = submission.queue
    if not request.dry_run and (mistakes := queue.mistakes(submission.options, specs[0].pod)):
        raise UserError("\n".join(mistakes))
    read_secrets(specs[0].pod)
    group, count = new_run_id(), len(specs)
    specs = [
        replace(spec, run_id=task_run_id(group, number, count), workdir=spec.workdir / variant.folder, owner="")
        for number, (spec, variant) in enumerate(zip(specs, variants, strict=True))
    ]
    specs, bundles = with_same_code(specs)
    arguments = queue.arguments(specs[0], submission.options, request.label.name or request.name)
    if request.dry_run:
        _preview(request, submission, specs, arguments)
        return ExitCode.DONE
    _say(queue, name, group, queue.submit_array(specs, bundles, arguments, at_once), variants, request.json)
    return ExitCode.DONE


def _request_of(request: Request, variant: Variant) -> Request:
    """Return the request of a task. Raises UserError if a value would not reach the program."""
    name = " ".join(filter(None, (request.label.name, variant.name)))
    pull = f"{request.pull}/{variant.folder}" if request.pull else request.pull
    request = request._replace(label=replace(request.label, name=name), pull=pull)
    if not request.program:
        return request._replace(overrides=variant.keys(request.overrides))
    placed = variant.placed(request.program)
    for key, _ in variant.values:
        if key not in placed and not is_variable(key) and not key.startswith("launch."):
            raise UserError(
                f"--array {key}: the program would not get its values: they replace {{{key}}} in its arguments, such as "
                f"{key}={{{key}}}, and {key} cannot be the name of an environment variable"
            )
    keys = (*variant.launch_keys(request.overrides), *variant.variables())
    return request._replace(program=variant.filled(request.program), overrides=keys)


def _preview(request: Request, submission: Submission, specs: Sequence[RunSpec], arguments: Sequence[str]) -> None:
    record, text = submission.queue.preview(specs[0], arguments, len(specs))
    names = [spec.label.name for spec in specs]
    if request.json:
        print(json.dumps({**record, "tasks": names}, indent=1))
    else:
        print("\n".join([text, *(f"task {number}: {name}" for number, name in enumerate(names))]))


def _say(
    queue: Queue, name: str, group: str, runs: Sequence[RunDirectory], variants: Sequence[Variant], as_json: bool
) -> None:
    jobs = [run.job() for run in runs]
    if as_json:
        rows = [
            {"run": run.run_id, "name": variant.name, f"{name}_job": job, "directory": str(run.path)}
            for run, variant, job in zip(runs, variants, jobs, strict=True)
        ]
        print(json.dumps({"array": group, "runs": rows}))
        return
    array = (jobs[0] or "").partition("_")[0]
    print(f"podrun: {group} is the {queue.title} array {array} of {counted(len(runs), 'task')}")
    print("\n".join(f"  {run.run_id}  {variant.name}" for run, variant in zip(runs[:_LISTED], variants, strict=False)))
    if len(runs) > _LISTED:
        print(f"  and {len(runs) - _LISTED} more")
    if words := unless_interrupted(lambda: pending_words(runs[0])):
        print(f"podrun: {words}")
    print(
        f"  podrun attach {group}    watch it to its end\n  podrun status {group}    all tasks\n"
        f"  podrun stop {group}      end it, or take it out of the queue"
    )
