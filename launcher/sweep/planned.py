"""Plan a sweep: find all mistakes of sweep.yaml, of the job and of the pod before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podrun.runtime.config import Config, Launch, bucket_url
from podrun.runtime.contract import UserError

from ..compare.files import Files, files_of
from ..compare.folder import Folders, folders_of
from ..compare.specs import check_all
from ..compare.variants import Variant
from ..inventory.find import find_pod
from ..inventory.pod_request import PodRequest
from ..plan.spec import Code, Label, RunSpec
from ..pod.errors import Mistakes
from ..pod.pod import Pod
from ..pod.run_id import new_run_id
from ..pod.secret_values import read_secrets
from ..request.queue_options import queue_name
from ..request.request import Request, make_spec
from .asha import Asha
from .early_stopping import check_early_stopping
from .journal import has_begun
from .parts import parts_of
from .space import Values, corners, variant_of
from .sweep_file import SweepFile, read_sweep

if TYPE_CHECKING:
    from ..staging.bundle import Bundle


@dataclass(frozen=True)
class Sweep:
    """A planned sweep."""

    name: str
    file: SweepFile
    request: Request
    parts: Sequence[Pod]
    """The parts of the pod; one trial runs on each at a time."""
    folders: Folders
    files: Files
    """Access to the trials' workdirs."""
    steps: int | None
    """Number of steps of the job with the first values of the space; None if it is not known."""
    stop_at: int | None
    """Step of that job at which its runs end; None: the last one."""
    job: dict[str, Any]
    """The job with the first values of the space, or the words of the program, for the journal."""
    asha: Asha | None = None
    """The rule by which trials are stopped early; None: all are trained to their end."""
    code: Code | None = None
    bundles: tuple[Bundle, ...] = ()

    def spec_of(self, variant: Variant, part: Pod, until: int | None = None) -> RunSpec:
        """Return the spec of a new run of a trial. Raises UserError if the job does not accept its values.

        `until`: the step at which it ends; None: the last one.
        """
        request = _request_of(self.request, variant)
        if until is not None:
            request = request._replace(overrides=(*request.overrides, f"stop_at={until}"))
        spec = make_spec(request, new_run_id(), part=part)
        spec = replace(spec, workdir=self.folders.runs / variant.folder, owner="")
        if self.code is None:
            return spec
        from ..staging.find_data import find_data
        from ..staging.requirements import worker_python

        spec = replace(spec, code=replace(self.code, python=worker_python(spec.pod)))
        if not isinstance(spec.job, Config) or not spec.job.brings_data:
            return spec
        data = find_data(spec.job, lambda text: None)
        return replace(spec, data=data, job=data.on_hosts(spec.job, spec.pod.home))

    @property
    def most_steps(self) -> int | None:
        """Return the largest number of steps that a trial may have; None if it is not known."""
        every = corners(self.file)
        lengths = [steps for values in every if isinstance(steps := values.get("steps", self.steps), int)]
        ends = [end for values in every if isinstance(end := values.get("stop_at", self.stop_at), int)]
        last = max(ends) if len(ends) == len(every) else None  # otherwise some trial is trained to its last step
        return self.steps_of({"steps": max(lengths, default=None), "stop_at": last})

    def steps_of(self, values: Values) -> int | None:
        """Return the number of steps that a trial with these values is trained for; None if it is not known."""
        steps, end = values.get("steps", self.steps), values.get("stop_at", self.stop_at)
        if not isinstance(steps, int):
            return None
        return min(steps, end) if isinstance(end, int) else steps


def plan_sweep(path: Path, where: PodRequest, workdir: Path | None, command: Sequence[str]) -> Sweep:
    """Plan the sweep in a sweep.yaml.

    Args:
        path: the sweep.yaml.
        where: the command line's options about the pod.
        workdir: folder of the sweep; None: `runs/NAME`.
        command: arguments of podrun, as typed.

    Raises:
        UserError: all mistakes.
        HostError: a host's folders cannot be read.
    """
    file = read_sweep(path)
    if file.learns and find_spec("optuna") is None:
        raise UserError(
            f"{path}: search: optuna needs the package optuna, which is not installed for {sys.executable}: "
            "pip install 'optuna>=4,<5', or use search: random"
        )
    name = path.stem
    if not name.strip("."):
        raise UserError(
            f"{path}: the sweep would be called {name!r}, which is no folder of its own; name the file otherwise"
        )
    where = replace(where, train=file.job)
    request = Request(file.job, (), where, workdir, program=file.program, label=Label(name), command=tuple(command))
    if queue := queue_name(request):
        raise UserError(
            f"--{queue}: a sweep does not submit jobs; call `podrun sweep` inside a job's allocation, or run all values as "
            f"a job array with `podrun --{queue}=OPTIONS --array KEY=A,B`"
        )
    variants = [variant_of(number, values) for number, values in enumerate(corners(file))]
    parts = parts_of(_find_pod(request, variants[0]), file.side_by_side)
    specs = check_all(request, variants, _request_of, (), parts[0])
    first = specs[0]
    if bucket := bucket_url.url(first.workdir):
        raise UserError(f"workdir {bucket}: a sweep needs folders for its trials; give one with --workdir DIR")
    read_secrets(first.pod)
    files = files_of(first.pod)
    folders = folders_of(first.workdir if workdir else first.workdir.with_name(name), first.pod)
    steps, stop_at = (first.job.steps, first.job.stop_at) if isinstance(first.job, Config) else (None, None)
    job = first.job.model_dump(mode="json") if isinstance(first.job, Config) else {"program": [*first.job.argv]}
    jobs = [spec.job for spec in specs if isinstance(spec.job, Config)]
    asha = check_early_stopping(file, jobs, is_new=not has_begun(folders.results))
    sweep = Sweep(name, file, request, parts, folders, files, steps, stop_at, job, asha)
    _check_budget(sweep, first)
    if not first.pod.traits.needs_staging:
        return sweep
    from ..run.pack import with_code

    spec, bundles = with_code(first)
    return replace(sweep, code=spec.code, bundles=bundles)


def _find_pod(request: Request, variant: Variant) -> Pod:
    """Return the pod. Raises UserError with the mistakes in the job, which may define it, and in the options."""
    mistakes = Mistakes()
    launch = mistakes.check(lambda: _launch_of(_request_of(request, variant)))
    if launch is None and not request.where.complete:
        raise mistakes
    pod = mistakes.check(lambda: find_pod(request.where, launch))
    mistakes.raise_any()
    assert pod
    return pod


def _launch_of(request: Request) -> Launch:
    from ..request.train_file import read_config, read_launch

    if request.train:
        return read_config(request.train, request.overrides).launch
    return read_launch(request.overrides) if request.overrides else Launch()


def _request_of(request: Request, variant: Variant) -> Request:
    """Return the request of a trial."""
    label = replace(request.label, name=f"{request.label.name}-{variant.folder}")
    if request.program:
        return request._replace(
            program=variant.program(request.program), overrides=variant.launch_keys(()), label=label
        )
    return request._replace(overrides=variant.keys(), label=label)


def _check_budget(sweep: Sweep, first: RunSpec) -> None:
    """Raise UserError if a limit in steps has no meaning for the job."""
    limit = sweep.file.budget.steps
    if limit is None:
        return
    if not isinstance(first.job, Config):
        raise UserError("budget.steps: podrun does not know the steps of a program; give budget.trials or budget.hours")
    if first.job.steps is None:
        raise UserError("budget.steps: the job gives epochs; give its steps, or budget.trials or budget.hours")
    if sweep.asha is None and sweep.most_steps is not None and sweep.most_steps > limit:
        raise UserError(
            f"budget.steps: {limit} is less than the {sweep.most_steps} steps of one trial; give at least that"
        )
