"""`podrun compile`: compile a job before it runs, and keep its executables on this machine."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from podrun.runtime.config import Config, Launch
from podrun.runtime.config.xla_presets import with_presets
from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.executable_list import CompileQuery, Made
from podrun.runtime.target import Target

from ..inventory.pod_request import PodRequest
from ..inventory.simulated import simulated_pod
from ..plan.program import Program
from ..plan.spec import Label, RunSpec
from ..pod.home import private, private_folder
from ..pod.run_id import new_run_id
from ..pod.slices import Slice
from ..pod.target import target_of
from ..request.query_process import QueryError, QueryProcess, query_environment
from ..request.request import Request, make_spec
from ..request.train_file import read_config
from ..run.attempts import run_attempts
from ..rundir.old_runs import old_run, remove
from ..rundir.runs import RunDirectory
from ..staging.stored_executables import FOLDER, Stored, stored_executables
from ..view.console import NoConsole
from ..view.times import size
from ..view.waiting import lock_or_wait, waiting

_PROGRAM = "podrun.runtime.compile_job"
_NOT_OF_A_POD = ("single", "ensemble")
"""Strategies whose processes are each compiled on their own, not as one pod."""


@dataclass(frozen=True)
class CompileRequest:
    """Command-line options of `podrun compile`."""

    train: Path
    overrides: tuple[str, ...] = ()
    slice: str | None = None
    pod: Path | None = None
    gpu: str | None = None


def compile_job(request: CompileRequest) -> int:
    """Compile the job, print what was made, and return the exit code. Raises UserError."""
    spec = _check(request)
    assert isinstance(spec.job, Config)
    stored = stored_executables(spec.job, spec.pod.slice.name)
    if spec.job.parallel.name in _NOT_OF_A_POD:
        raise UserError(
            f"parallel: {spec.job.parallel.name} has no program of the whole pod: each process compiles its own at the start"
        )
    target = _target(spec.pod.slice, request.gpu)
    with _alone(stored), tempfile.TemporaryDirectory(prefix="podrun-compile-") as folder:
        query: CompileQuery = {
            "target": asdict(target) if target else None,
            "config": spec.job.model_dump(mode="json"),
            "slice": spec.pod.slice.name,
            "list": str(stored.path),
            "answer": str(Path(folder, "answer.json")),
        }
        with waiting(f"compiling for {spec.pod.slice.name}"):
            made = _for_target(query, spec, target.platform) if target else _in_pod(query, spec, Path(folder))
    if isinstance(made, int):
        return made
    print(_as_text(request.train, spec.pod.slice, made, stored))
    return ExitCode.DONE


def _check(request: CompileRequest) -> RunSpec:
    """Resolve the job for the slice, or for the pod of the pod file. Raises one UserError with all mistakes."""
    return make_spec(
        Request(
            train=request.train,
            overrides=request.overrides,
            where=PodRequest(
                request.slice,
                request.pod,
                {} if request.pod or _names_pod(request) else {"simulate": True},
                train=request.train,
            ),
            workdir=Path(tempfile.gettempdir()),  # nothing is written, so the job's own workdir need not exist
        )
    )


def _names_pod(request: CompileRequest) -> bool:
    try:
        return read_config(request.train, request.overrides).launch.pod is not None
    except UserError:  # the main path reports it, with all other mistakes
        return False


def _target(slice: Slice, gpu: str | None) -> Target | None:
    """Return the target of the slice; None for CPUs. Raises UserError."""
    target = target_of(slice, gpu)
    if target is None and slice.kind == "gpu":
        raise UserError(f"{slice.name}: which GPUs? name them in the slice (h100-16), or give --gpu h100")
    return target


@contextmanager
def _alone(stored: Stored) -> Iterator[None]:
    """Hold the lock of `podrun compile` for this job and slice; wait for another process that holds it. Raises UserError."""
    try:
        lock = open(private_folder(FOLDER) / f"{stored.path.stem}.lock", "w", opener=private)
    except OSError as error:
        raise UserError(
            f"cannot keep the compiled programs in {stored.path.parent}: {error.strerror}; make room there, or set "
            "PODRUN_HOME to another folder"
        ) from None
    with lock:
        lock_or_wait(lock, "compiles the same job")
        yield


def _for_target(query: CompileQuery, spec: RunSpec, platform: str) -> list[Made] | int:
    """Compile in one process for the devices of TPUs or GPUs. Returns the executables, or the exit code of a failure."""
    launch = spec.job.launch
    env = with_presets({**spec.pod.env, **launch.env}, launch.xla, platform)
    process = QueryProcess(_python(spec), _PROGRAM, query_environment(env, is_for_hosts=True), "compiled the job")
    try:
        return Made.parse(process.ask(query))
    except QueryError as error:
        print(f"podrun: the job cannot be compiled: {error}", file=sys.stderr)
        return ExitCode.FAILED


def _in_pod(query: CompileQuery, spec: RunSpec, folder: Path) -> list[Made] | int:
    """Compile on a simulated pod of CPUs, which ends afterwards. Returns the executables, or the exit code of a failure."""
    file = folder / "query.json"
    file.write_text(json.dumps(query))
    launch = spec.job.launch
    program = Program(
        ("python", "-m", _PROGRAM, str(file)),
        Launch(process_per=launch.process_per, env=launch.env, start_timeout=launch.start_timeout),
    )
    pod = replace(simulated_pod(spec.pod.slice), env=spec.pod.env, python=_python(spec))
    run = RunSpec(new_run_id(), pod, program, folder / "workdir", spec.cwd, label=Label(name="compile"))
    directory = RunDirectory.create(run)
    code = run_attempts(run, directory, _Silent())
    if code == ExitCode.INTERRUPTED:
        print("podrun: interrupted; compiled programs that were complete are kept", file=sys.stderr)
    if code:
        return code
    remove(old_run(directory))
    return Made.parse(Path(query["answer"]).read_text())


class _Silent(NoConsole):
    """Console of the pod that compiles: only its failure is shown."""

    def say(self, text: str) -> None:
        pass


def _python(spec: RunSpec) -> str:
    """Return the interpreter on this machine that has the job's libraries."""
    return (spec.job.launch.python if spec.pod.traits.files_are_here else None) or sys.executable


def _as_text(train: Path, slice: Slice, made: Sequence[Made], stored: Stored) -> str:
    """Return a text about the executables: how long they took, their sizes, and where they are stored."""
    new = [one for one in made if one.is_new]
    rows = []
    for name in dict.fromkeys(one.executable.name for one in made):
        these = [one for one in made if one.executable.name == name]
        seconds = sum(one.executable.seconds for one in these)
        took = f"{seconds:.1f} s" if any(one.is_new for one in these) else "there already"
        count = f" ({len(these)} processes)" if len(these) > 1 else ""
        rows.append(f"  {name + count:<30}{took:>14}{size(sum(one.executable.bytes for one in these)):>10}")
    what = (
        "all of it was compiled before; nothing was compiled now" if not new else f"{len(new)} of {len(made)} compiled"
    )
    lines = [f"{train.name} for {slice.name}: {what}", *rows, f"kept in {stored.path.parent}"]
    if slice.kind == "gpu":
        lines.append(
            "step and evaluation are compiled on the hosts: XLA chooses a GPU's kernels by measuring them there"
        )
    return "\n".join(lines)
