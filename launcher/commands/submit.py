"""`podrun --slurm=partition=gpu,time=2:00:00 train.yaml`: submit a run to SLURM, from where no job is."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

from podrun.runtime.contract import ExitCode, UserError

from ..inventory.slurm_options import BatchOptions
from ..pod.run_id import new_run_id
from ..pod.secret_values import read_secrets
from ..request.queue_checks import queue_mistakes
from ..request.queue_options import with_queue_options
from ..request.request import Request, owner_of_workdir, resolve_request
from ..run.pack import with_code
from ..run.submission import sbatch_words, script_of, submit_run
from ..rundir.runs import RunDirectory
from ..rundir.spec import RunSpec
from ..rundir.submitted import pending_words


def submit(request: Request, typed: str) -> int:
    """Submit the run with these options, and return at once. Raises UserError with all mistakes, before anything is made."""
    options, spec = _resolve(request, typed)
    spec, bundles = with_code(spec)
    if request.pull is not None:
        from ..results.pull_run import default_folder

        spec = replace(spec, pull=Path(request.pull or default_folder(spec)).expanduser().absolute())
    read_secrets(spec.pod)
    words = sbatch_words(spec, options, request.label.name or request.name)
    if request.dry_run:
        script = script_of(spec)
        shown = {"sbatch": words, "script": script}
        print(json.dumps(shown, indent=1) if request.json else f"{shlex.join(['sbatch', *words])} <<'END'\n{script}END")
        return ExitCode.DONE
    _say(submit_run(spec, bundles, words), request.json)
    return ExitCode.DONE


def _resolve(request: Request, typed: str) -> tuple[BatchOptions, RunSpec]:
    """Return what was typed, checked. Raises UserError."""
    request, options, problems = with_queue_options(request, typed)
    resolved, mistakes = resolve_request(request)
    if not request.dry_run:
        problems += queue_mistakes(options, resolved.pod if resolved else None)
    if problems or resolved is None:
        raise UserError("\n".join([*problems, *mistakes]))
    pod, job, workdir = resolved.pod, resolved.job, resolved.workdir
    return options, RunSpec(
        new_run_id(),
        pod,
        job,
        workdir,
        Path.cwd(),
        owner=owner_of_workdir(request, job, pod),
        inject=resolved.inject,
        label=request.label,
        command=request.command,
    )


def _say(directory: RunDirectory, as_json: bool) -> None:
    run, job = directory.run_id, directory.job()
    if as_json:
        print(json.dumps({"run": run, "slurm_job": job, "directory": str(directory.path)}))
        return
    print(
        f"podrun: {pending_words(directory) or f'{run} is the SLURM job {job}'}\n"
        f"  podrun attach {run}    watch it\n  podrun status {run}    where it is in the queue\n"
        f"  podrun stop {run}      end it, or take it out of the queue"
    )
