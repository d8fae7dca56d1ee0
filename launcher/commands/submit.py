"""`podrun --slurm=partition=gpu,time=2:00:00 train.yaml`: submit a run to SLURM, from where no job is."""

from __future__ import annotations

import json
import pickle
import shlex
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from podrun.runtime.contract import ExitCode, UserError

from ..inventory.slurm_options import BatchOptions, parse_options
from ..plan.batch_script import batch_options, batch_script
from ..pod.home import podrun_home
from ..pod.run_id import new_run_id
from ..pod.secret_values import read_secrets
from ..request.request import Request, owner_of_workdir, resolve_request
from ..rundir.runs import RunDirectory
from ..rundir.spec import RunSpec
from ..rundir.submitted import pending_words
from ..rundir.work_tree import note_work_tree
from ..staging.bundles import Bundle
from ..supervise.pack import with_code
from ..transport.slurm.batch import PATIENCE
from ..transport.slurm.batch import submit as submit_script
from ..transport.slurm.job import SlurmError

_NAME = 60  # characters of a job's name


def submit(request: Request, typed: str) -> int:
    """Submit the run with these options, and return at once. Raises UserError with all mistakes, before anything is made."""
    options, spec = _resolve(request, typed)
    spec, bundles = with_code(spec)
    if request.pull is not None:
        from ..results.pull_run import default_folder

        spec = replace(spec, pull=Path(request.pull or default_folder(spec)).expanduser().absolute())
    read_secrets(spec.pod)
    directory = podrun_home() / "runs" / spec.run_id
    script = batch_script(spec.run_id, spec.command, spec.cwd, podrun_home(), _command(directory))
    name = f"podrun-{request.label.name or request.name}"[:_NAME]
    words = batch_options(options, spec.pod, name, RunDirectory(directory).job_output)
    if request.dry_run:
        shown = {"sbatch": words, "script": script}
        print(json.dumps(shown, indent=1) if request.json else f"{shlex.join(['sbatch', *words])} <<'END'\n{script}END")
        return ExitCode.DONE
    return _submit(spec, bundles, script, words, request)


def _resolve(request: Request, typed: str) -> tuple[BatchOptions, RunSpec]:
    """Return what was typed, checked. Raises UserError."""
    problems: list[str] = []
    try:
        options = parse_options(typed)
    except UserError as error:
        problems.append(str(error))
        options = BatchOptions(())
    inventories = {**request.where.inventories, "slurm": options}
    request = replace(request, where=replace(request.where, inventories=inventories))
    resolved, mistakes = resolve_request(request)
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


def _command(directory: Path) -> list[str]:
    """Return the command that supervises the run of a directory inside its job."""
    return [sys.executable, "-m", "podrun.launcher.supervise.job_start", str(directory)]


def _say_that_it_waits() -> None:
    what = f"SLURM has not taken the job yet: its queue may be full; podrun tries for {PATIENCE:g} s"
    print(f"podrun: {what}", file=sys.stderr, flush=True)


def _submit(spec: RunSpec, bundles: tuple[Bundle, ...], script: str, words: list[str], request: Request) -> int:
    directory = RunDirectory.create(spec)
    try:
        directory.write(directory.bundles, pickle.dumps(list(bundles)))
        directory.write(directory.job_script, script.encode())
        directory.write(directory.job_options, json.dumps(words).encode())
        directory.events.touch(mode=0o600)
        job = submit_script(words, str(directory.job_script), _say_that_it_waits)
    except SlurmError as error:
        shutil.rmtree(directory.path, ignore_errors=True)
        raise UserError(f"SLURM has not taken the job: {error}") from None
    except KeyboardInterrupt:  # while the queue is full
        shutil.rmtree(directory.path, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(directory.path, ignore_errors=True)
        raise UserError(f"cannot write {error.filename or directory.path}: {error.strerror}") from None
    with suppress(OSError):  # a full disk; the job records itself when it starts
        directory.record_job(job)
    note_work_tree(directory.work_tree, spec.cwd)
    run = spec.run_id
    if request.json:
        print(json.dumps({"run": run, "slurm_job": job, "directory": str(directory.path)}))
        return ExitCode.DONE
    print(
        f"podrun: {pending_words(directory) or f'{run} is the SLURM job {job}'}\n"
        f"  podrun attach {run}    watch it\n  podrun status {run}    where it is in the queue\n"
        f"  podrun stop {run}      end it, or take it out of the queue",
        file=sys.stdout,
    )
    return ExitCode.DONE
