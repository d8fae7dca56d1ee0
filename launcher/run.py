"""`podrun train.yaml`: from what the user typed to an exit code."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from podrun.runtime.config import Config, Launch, check_batch, check_files
from podrun.runtime.contract import Event, EventKind, ExitCode, UserError, Workdir

from .config_mistakes import short
from .console import Console, make_console
from .failure import Failure
from .inventory.find import PodRequest, find_pod
from .logs import HostLogs, tail
from .plan import LaunchPlan, make_plan
from .pod import Pod
from .runs import Recorder, RunDirectory, new_run_id, podrun_home
from .supervisor import Outcome, Supervisor
from .train_file import read_config
from .transport.base import load_transport

_TAIL = 12  # lines of the first cause's output that are shown


@dataclass(frozen=True)
class Request:
    """What the user typed."""

    train: Path
    overrides: tuple[str, ...] = ()
    slice: str | None = None
    pod: Path | None = None
    simulate: bool = False
    workdir: Path | None = None
    dry_run: bool = False
    json: bool = False
    hosts: str | None = None
    hostfile: Path | None = None

    @property
    def where(self) -> PodRequest:
        return PodRequest(self.slice, self.pod, self.hosts, self.hostfile, self.simulate, self.train)


def run(request: Request) -> int:
    """Carries out the request and returns podrun's exit code. Raises UserError before anything is started."""
    config, pod, workdir = _check(request)
    run_id = new_run_id()

    def plan(attempt: int) -> LaunchPlan:
        directory = podrun_home() / "runs" / run_id
        return make_plan(
            pod, config, run_id=run_id, attempt=attempt, workdir=workdir, run_directory=directory, cwd=Path.cwd()
        )

    if request.dry_run:
        print(plan(0).render())
        return ExitCode.DONE
    _make_workdir(workdir)
    directory = RunDirectory.create(run_id)
    console = make_console(request.json)
    return _attempts(plan, config.launch.max_restarts, directory, console)


# --- before anything starts -----------------------------------------------------------------------------------------


T = TypeVar("T")


def _check(request: Request) -> tuple[Config, Pod, Path]:
    """Everything that can be found wrong on this machine. Raises one UserError with all of it."""
    problems: list[str] = []

    def attempt(check: Callable[[], T]) -> T | None:
        try:
            return check()
        except UserError as error:
            problems.append(str(error))
            return None

    config = attempt(lambda: read_config(request.train, request.overrides))
    launch = config.launch if config else Launch()
    # What a broken train.yaml would have said about the pod is not known, and not missed.
    pod = attempt(lambda: find_pod(request.where, launch)) if config or request.where.complete else None
    workdir = attempt(lambda: _find_workdir(request, launch))
    if config and pod:
        attempt(lambda: check_batch(config, pod.slice.devices))
    if config and (request.simulate or (pod and pod.transport == "local")):  # this machine's files are the hosts'
        attempt(lambda: check_files(config))
        attempt(lambda: _check_python(config))
    if problems:
        raise UserError("\n".join(problems))
    assert config and pod and workdir
    return config, pod, workdir


def _find_workdir(request: Request, launch: Launch) -> Path:
    """Raises UserError unless the workdir, or the nearest folder above it, can be written."""
    chosen = request.workdir or launch.workdir or Path("runs") / request.train.stem
    remedy = "choose another with --workdir DIR"
    try:
        workdir = chosen.expanduser().absolute()
        existing = next(p for p in (workdir, *workdir.parents) if p.exists())
    except (OSError, RuntimeError) as error:  # a name that is too long; a user without a home
        raise UserError(
            f"workdir {short(str(chosen))}: {getattr(error, 'strerror', None) or error}; {remedy}"
        ) from None
    if not existing.is_dir():
        raise UserError(f"workdir {workdir}: {existing} is a file, not a folder; {remedy}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"workdir {workdir}: no permission to write in {existing}; {remedy}")
    return workdir


def _make_workdir(workdir: Path) -> None:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / f".podrun-probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"workdir {workdir}: cannot write there: {error.strerror}; choose another with --workdir DIR"
        ) from None


def _check_python(config: Config) -> None:
    """Raises UserError unless `launch.python` can run the runtime."""
    python = config.launch.python
    if python is None:
        return
    if shutil.which(python) is None:
        raise UserError(
            f"launch.python: there is no program {python!r} on this machine; give the path of a Python 3.11+"
        )
    probe = "import importlib.util as u; print(*(m for m in ('podrun.runtime', 'jax') if not u.find_spec(m)))"
    try:
        answer = subprocess.run(
            [python, "-c", f"try:\n {probe}\nexcept ModuleNotFoundError: print('podrun')"],
            env={**os.environ, **config.launch.env},
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # the agent will try, and say why not
    if answer.returncode == 0 and answer.stdout.strip():
        missing = " and ".join(answer.stdout.split())
        raise UserError(
            f"launch.python: {python} has no {missing}; install podrun there: {python} -m pip install podrun"
        )


# --- attempts -------------------------------------------------------------------------------------------------------


class _Observers:
    """The console and the recorder. A console whose output nobody reads any more counts as a closed terminal: SIGHUP."""

    def __init__(self, console: Console, recorder: Recorder) -> None:
        self._console: Console | None = console
        self._recorder = recorder

    def event(self, event: Event) -> None:
        self._recorder.event(event)
        self._show(lambda console: console.event(event))

    def start(self, plan: LaunchPlan) -> None:
        self._show(lambda console: console.start(plan))

    def say(self, text: str) -> None:
        self._show(lambda console: console.say(text))

    def stop(self) -> None:
        self._show(lambda console: console.stop())

    def _show(self, action: Callable[[Console], None]) -> None:
        if self._console is None:
            return
        try:
            action(self._console)
        except OSError:
            self._console = None
            # What Python still has buffered for it would fail once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            signal.raise_signal(signal.SIGHUP)


def _attempts(
    plan_of: Callable[[int], LaunchPlan], max_restarts: int, directory: RunDirectory, console: Console
) -> int:
    """Starts the pod, and starts it again after a failure as often as is allowed. Returns the exit code."""
    recorder = Recorder(directory.events)
    view = _Observers(console, recorder)
    with HostLogs(directory.logs) as logs, _signals() as (signals, forward):
        attempt = 0
        while True:
            plan = plan_of(attempt)
            directory.plan.write_text(plan.to_json())
            directory.plan.chmod(0o600)
            supervisor = Supervisor(plan, load_transport(plan.pod), logs, view)
            forward(supervisor.interrupt)
            for number in signals:  # that came between two attempts
                supervisor.interrupt(number)
            view.start(plan)
            if attempt == 0:
                view.say(_headline(plan, directory))
            try:
                outcome = supervisor.run()
            finally:
                view.stop()
            if outcome.cause is None or outcome.code == ExitCode.BAD_CONFIG or attempt >= max_restarts or signals:
                break
            attempt += 1
            view.say(f"{outcome.cause}\nrestart {attempt} of {max_restarts} from the last checkpoint")
        view.event(_end_event(outcome))
        _report(outcome, plan, directory, view)
    recorder.close()
    return outcome.code


@contextmanager
def _signals() -> Iterator[tuple[list[int], Callable[[Callable[[int], None]], None]]]:
    """Ctrl-C, SIGTERM and SIGHUP go to whoever `forward` was last called with, and into the list."""
    received: list[int] = []
    receivers: list[Callable[[int], None]] = []

    def handle(number: int, _: object) -> None:
        received.append(number)
        if receivers:
            receivers[-1](number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield received, receivers.append
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _headline(plan: LaunchPlan, directory: RunDirectory) -> str:
    slice = plan.pod.slice
    kind = "simulated on this machine" if plan.pod.transport == "local" else f"reached by {plan.pod.transport}"
    hosts = "1 host" if slice.hosts == 1 else f"{slice.hosts} hosts"
    return (
        f"podrun {plan.run_id}: {slice.name} = {hosts} x {slice.devices_per_host} devices, {kind}\n"
        f"  workdir {plan.workdir}\n  logs    {directory.logs}"
    )


# --- the end --------------------------------------------------------------------------------------------------------


def _end_event(outcome: Outcome) -> Event:
    cause = outcome.cause
    return {
        "event": EventKind.END,
        "time": time.time(),
        "code": int(outcome.code),
        "host": cause.host if cause else None,
        "process": cause.process if cause else None,
        "message": _last_line(outcome),
    }


def _last_line(outcome: Outcome) -> str:
    if outcome.cause:
        return f"failed: {outcome.cause} [exit code {outcome.code}]"
    if outcome.interrupted_by is not None:
        saved = f"; the checkpoint of step {outcome.saved_step} is complete" if outcome.saved_step is not None else ""
        return f"interrupted{saved}; the same command resumes the run [exit code {outcome.code}]"
    return "done"


def _report(outcome: Outcome, plan: LaunchPlan, directory: RunDirectory, view: _Observers) -> None:
    """Where everything is if all went well; else the first cause, its evidence, and the first cause again."""
    workdir = Workdir(plan.workdir)
    if outcome.cause is None:
        if outcome.interrupted_by is None:
            view.say(
                f"metrics      {workdir.metrics}\ncheckpoints  {workdir.checkpoints}\n"
                f"tensorboard  tensorboard --logdir {shlex.quote(str(workdir.tensorboard))}\nlogs         {directory.logs}"
            )
        view.say(f"podrun: {_last_line(outcome)}")
        _complain(outcome.left_behind)
        return
    lines = _evidence(outcome.cause, outcome.failures, directory)
    _complain(outcome.left_behind)
    print("\n".join(lines), f"podrun: {_last_line(outcome)}", sep="\n", file=sys.stderr, flush=True)


def _evidence(cause: Failure, failures: Sequence[Failure], directory: RunDirectory) -> list[str]:
    if cause.code == ExitCode.BAD_CONFIG:
        lines = cause.details.splitlines()
        return lines if len(lines) > 1 else []  # a single line is the last line too
    log = directory.log(cause.host)
    shown = cause.details.strip().splitlines()[-_TAIL:] or tail(log, _TAIL)
    lines = [f"{cause.host} | {line}" for line in shown]
    others = [f for f in failures if f is not cause and f.who != cause.who]
    if others:
        lines.append("after that: " + "; ".join(dict.fromkeys(map(_short, others[:4]))))
    return [*lines, f"log: {log}"] if log.exists() else lines


def _short(failed: Failure) -> str:
    text = str(failed)
    return text if len(text) <= 100 else text[:97] + "..."


def _complain(left_behind: Sequence[str]) -> None:
    for row in left_behind:
        print(f"podrun: could not confirm that nothing is left on {row}", file=sys.stderr, flush=True)
