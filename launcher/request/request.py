"""Check the command line of a run, and make the run's spec of it."""

from __future__ import annotations

import getpass
import os
import tempfile
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from podrun.runtime.config import Launch, bucket_url
from podrun.runtime.config.xla_presets import misplaced_presets
from podrun.runtime.contract import UserError

from ..agent.base.python_version import KNOWN, is_malformed, is_version, too_old
from ..inventory.find import find_pod
from ..inventory.pod_request import PodRequest
from ..plan.program import Program
from ..plan.spec import Label, RunSpec
from ..pod.errors import Mistakes
from ..pod.pod import Pod
from ..pod.run_id import new_run_id
from ..yamlfile.short import short
from .config_checks import config_checks
from .injections import resolve_injections
from .program_checks import check_kind, check_program, check_sent_script, misplaced_options

if TYPE_CHECKING:
    from podrun.runtime.config import Config


class Request(NamedTuple):
    """Command line of a run."""

    train: Path | None
    overrides: tuple[str, ...] = ()
    where: PodRequest = PodRequest()
    workdir: Path | None = None
    dry_run: bool = False
    json: bool = False
    program: tuple[str, ...] = ()
    """Command line of a user program, instead of `train`."""
    detach: bool = False
    inject: tuple[str, ...] = ()
    """Faults to inject, as typed."""
    pull: str | None = None
    """Folder for the results after the run; empty: the folder that `podrun pull` uses; None: do not download them."""
    compile_ahead: bool | None = None
    """Compile while the run waits in a queue; None: only if the compiler of the slice is installed."""
    label: Label = Label()
    command: tuple[str, ...] = ()
    """Arguments of the podrun command, as typed."""

    @property
    def name(self) -> str:
        """Return the default name of a workdir: `train` for train.yaml, `my` for `python -u my.py` or `-m my`."""
        if self.train:
            return self.train.stem
        script = next((word for word in self.program if word.endswith(".py")), None)
        module = self.program[self.program.index("-m") + 1 :][:1] if "-m" in self.program else ()
        return Path(script or next(iter(module), self.program[0])).stem


def make_spec(
    request: Request,
    run_id: str | None = None,
    of_run: Config | None = None,
    folder: Path | None = None,
    part: Pod | None = None,
) -> RunSpec:
    """Return the spec of the run, without its code.

    Args:
        request: what was typed.
        run_id: id of the run; None: a new one.
        of_run: the job of an earlier run in the request's workdir, which is only read; None: the request has the job.
        folder: folder of that job's relative paths on this machine; None: the current folder.
        part: the pod, or a part of it, if it was found before; None: find the pod of the request.

    Raises:
        Mistakes: all mistakes that can be found on this machine.
    """
    mistakes = Mistakes()
    train = request.train
    if of_run is None:
        mistakes.check(lambda: check_kind(train, request.program, request.overrides))
        mistakes.raise_any()
    job: Config | Program | None
    if train or request.overrides:
        from .train_file import read_config, read_launch  # slow import

    if of_run is not None:
        job = of_run
    elif train:
        job = mistakes.check(lambda: read_config(train, request.overrides))
    else:
        job = mistakes.check(
            lambda: Program(request.program, read_launch(request.overrides) if request.overrides else Launch())
        )
    launch = job.launch if job else Launch()
    # a broken train.yaml may contain pod settings, so do not report these as missing
    if launch.join and (train or not launch.instrument):
        mistakes.add(
            "--join is for a program of your own: a train.yaml joins the pod by itself; remove it"
            if train
            else "launch.join needs launch.instrument, which is false; remove one of them"
        )
    pod = part
    if pod is None and (job or request.where.complete):
        pod = mistakes.check(lambda: find_pod(request.where, launch))
    if pod is None and (misplaced := misplaced_options(request.program)):
        mistakes.texts.insert(0, misplaced)
    chosen = request.workdir or launch.workdir or Path(request.name)
    mistakes.add(*(wrong := bucket_url.mistakes(chosen)))
    bucket = bucket_url.url(chosen)
    if bucket and request.program:
        mistakes.add(f"workdir {bucket}: a user program keeps its results in a folder; give one with --workdir DIR")
    is_local = request.where.is_here or (pod is not None and pod.traits.files_are_here)
    # On other hosts the paths are relative to the project there.
    if of_run is not None and (is_local or of_run.brings_data):
        from podrun.runtime.config import with_files_in  # slow import

        job = with_files_in(of_run, folder or Path.cwd())
    workdir: Path | None = chosen
    if not bucket and not wrong:
        remote = None if is_local else pod
        if remote or of_run is None:
            workdir = mistakes.check(
                lambda: workdir_on_hosts(remote, chosen) if remote else _find_workdir(request, launch, pod)
            )
    if pod and launch.process_per == "device" and pod.platform == "tpu":
        mistakes.add("launch.process_per: device: a TPU host has one process; remove it, or use a gpu or cpu slice")
    if pod and not pod.traits.files_are_here:
        mistakes.add(*_wrong_version(pod, launch, is_train=job is not None and not isinstance(job, Program)))
    if pod and (misplaced := misplaced_presets(launch.xla, pod.slice.kind, pod.slice.name)):
        mistakes.add(misplaced)
    inject = mistakes.check(lambda: resolve_injections(request.inject, pod, launch.process_per, bool(request.program)))
    if isinstance(job, Program):
        program = job
        if launch.verify_every:
            mistakes.add("launch.verify_every: podrun does not know the state of a user program; remove the key")
        checks = [lambda: check_program(program)] if is_local else []
        if not is_local and pod is not None and pod.traits.needs_staging and pod.container is None:
            checks = [lambda: check_sent_script(program)]
    else:
        checks = config_checks(job, pod, is_local, of_run is not None) if job else []
    for check in checks:
        mistakes.check(check)
    mistakes.raise_any()
    assert job and pod and workdir
    if launch.python and not pod.traits.files_are_here:
        pod = pod.with_python(launch.python)
    spec = RunSpec(
        run_id or new_run_id(),
        pod,
        job,
        workdir,
        Path.cwd(),
        detached=request.detach,
        owner=owner_of_workdir(request, job, pod),
        inject=inject or (),
        label=request.label,
        command=request.command,
    )
    if request.pull is None:
        return spec
    from ..results.pull_run import default_folder

    return replace(spec, pull=Path(request.pull or default_folder(spec)).expanduser().absolute())


def _wrong_version(pod: Pod, launch: Launch, *, is_train: bool) -> list[str]:
    """Return what is wrong with a version of Python that podrun should bring to other machines."""
    python = launch.python or ("" if pod.container else pod.python or "")
    key = "launch.python" if launch.python else "python in the pod file"
    if is_malformed(python):
        return [f"{key}: {python} is no version of Python that podrun brings ({KNOWN}); write 3.12 or 3.12.4"]
    if not is_version(python):
        return []
    if is_train and (old := too_old(python)):
        return [f"{key}: {old}"]
    if launch.python and not pod.requirements:
        return [
            f"{key}: {python} is a version, which podrun brings for the packages of `requirements:` in a pod file for "
            "--pod; name a requirements.txt there, or give the path of an interpreter"
        ]
    return []


def workdir_on_hosts(pod: Pod, chosen: Path) -> Path:
    """Return the workdir on the hosts. Raises UserError if a container there would not see it, which would lose the results.

    The agent mounts the workdir into a container if it runs outside of it. The login folder is always mounted, and by engines
    with a transport of their own the pod's `workdir`.
    """
    workdir, container = pod.workdir_on_hosts(chosen), pod.container
    mounted = container is not None and bool(container.how.transport) and pod.workdir is not None
    if (
        container is None
        or not container.holds_agent
        or workdir.parts[:1] == ("~",)
        or Path(pod.home) in workdir.parents
        or (mounted and Path(pod.workdir or "") in (workdir, *workdir.parents))
    ):
        return workdir
    if not container.sees(PurePosixPath(workdir)):
        raise UserError(
            f"workdir {workdir}: the image does not see it; name it, or a folder above it that is on all nodes, with "
            "`container.mounts:` in the pod file"
        )
    return workdir


def _find_workdir(request: Request, launch: Launch, pod: Pod | None) -> Path:
    """Return the workdir on this machine. Raises UserError if it, or its nearest existing parent, is not writable."""
    if pod and pod.workdir:
        chosen = pod.workdir_on_hosts(request.workdir or launch.workdir or Path(request.name))
    else:
        chosen = request.workdir or launch.workdir or Path("runs") / request.name
    remedy = "choose another with --workdir DIR"
    try:
        workdir = chosen.expanduser().absolute()
        if ".." in workdir.parts:  # the name without it may be another folder, behind a link
            workdir = workdir.resolve()
        existing = next(p for p in (workdir, *workdir.parents) if p.exists())
    except (OSError, RuntimeError) as error:  # too long a name, or `~` of a user without a home
        raise UserError(
            f"workdir {short(str(chosen))}: {getattr(error, 'strerror', None) or error}; {remedy}"
        ) from None
    if not existing.is_dir():
        raise UserError(f"workdir {workdir}: {existing} is a file, not a folder; {remedy}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"workdir {workdir}: no permission to write in {existing}; {remedy}")
    return workdir


def owner_of_workdir(request: Request, job: Config | Program, pod: Pod) -> str:
    """Return the name under which this project claims a default workdir; empty if other projects cannot use that workdir."""
    if (pod.traits.files_are_here and not pod.workdir) or not request.train or request.workdir or job.launch.workdir:
        return ""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = str(os.getuid())
    # not the machine's name: it may change, as in a container
    return f"{user}:{request.train.resolve()}"


def make_workdir(workdir: Path) -> None:
    """Create the workdir on this machine, unless it is in a bucket. Raises UserError if it is not writable."""
    if bucket_url.url(workdir):
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(prefix=".podrun-probe-", dir=workdir):
            pass
    except OSError as error:
        raise UserError(
            f"workdir {workdir}: cannot write there: {error.strerror}; choose another with --workdir DIR"
        ) from None
