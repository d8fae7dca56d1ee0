"""`podrun replay`: compute steps of a run again on its hosts, and say whether a host, or the program, computes otherwise."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from podrun.runtime.config import Config
from podrun.runtime.contract import ErrorKind, ExitCode, Replay, UserError
from podrun.runtime.events import EventKind
from podrun.runtime.injection import BIT_FLIP, WRONG_SUM
from podrun.runtime.wording import first_names

from ..inventory.pod_request import PodRequest
from ..plan.spec import Label, RunSpec
from ..pod.pod import Pod
from ..pod.run_id import new_run_id
from ..request.injections import resolve_injections
from ..request.queue_options import queue_name
from ..request.request import Request, make_spec
from ..run.attempts import run_attempts
from ..run.host_failures import record_wrong_results
from ..rundir.read_state import read_state
from ..rundir.replayed import Record, Result, judge, replayed_of
from ..rundir.runs import RunDirectory, all_runs, find_run
from ..rundir.saved import resumed_from
from ..view.console import QuietConsole
from ..view.live_console import make_console
from ..view.printable import in_one_line

if TYPE_CHECKING:
    from ..staging.bundle import Bundle

MOST_STEPS = 100
"""Most steps that are compared: each has digests of all parameters and repetitions."""
_KINDS = (BIT_FLIP, WRONG_SUM)


@dataclass(frozen=True)
class ReplayRequest:
    """Command line of `podrun replay`.

    Attributes:
        run: the run, as `find_run` takes it; None: the newest that trains.
        first: first step to compare.
        last: last step to compare.
        on: names of hosts of the pod; none: all.
        times: number of repetitions.
        inject: faults to rehearse, as typed.
        json: print the verdict as JSON.
        where: the pod; without options that of the run.
        command: arguments of podrun, as typed.
    """

    run: str | None
    first: int
    last: int
    on: tuple[str, ...] = ()
    times: int = 3
    inject: tuple[str, ...] = ()
    json: bool = False
    where: PodRequest = field(default_factory=PodRequest)
    command: tuple[str, ...] = ()


def replay(request: ReplayRequest) -> int:
    """Print the verdict, and return podrun's exit code. Raises UserError; UnavailableError if a bucket is unreachable."""
    of_run = _newest_that_trains() if request.run is None else find_run(request.run)
    spec = replay_spec(request, of_run)
    bundles: tuple[Bundle, ...] = ()
    if spec.pod.traits.needs_staging:
        from ..run.pack import with_code

        spec, bundles = with_code(spec)
    directory = RunDirectory.create(spec)
    code = run_attempts(spec, directory, QuietConsole() if request.json else make_console(False), bundles)
    if code != ExitCode.DONE:
        return code
    replayed, saved, hosts = replayed_of(directory.read_events())
    expected = request.times * (request.last - request.first + 1)
    if len(replayed) != expected:
        raise UserError(
            f"the record of the replay, {directory.events}, has {len(replayed)} of {expected} results; was the disk full?"
        )
    result = judge(replayed, Record.of_lines(of_run.lines(), request.first, request.last), saved, hosts)
    print(_json(result, request, of_run) if request.json else _text(result, of_run))
    if (noted := record_wrong_results(spec, result.hosts, in_one_line(result.sentence))) and not request.json:
        print(f"  {noted}")
    return int(result.verdict.code)


def _newest_that_trains() -> RunDirectory:
    """Return the newest run with steps of its own: a replay or an evaluation is a run as well. Raises UserError."""
    newest = find_run(None)
    for directory in all_runs():
        try:
            if directory.spec().trains:
                return directory
        except UserError:  # of another version
            continue
    raise UserError(f"no run in {newest.path.parent} trains, so there are no steps; `podrun ps --all` lists the runs")


def replay_spec(request: ReplayRequest, of_run: RunDirectory) -> RunSpec:
    """Return the run that replays, without its code. Raises UserError with what is wrong."""
    ran = of_run.spec()
    job = ran.job
    if not ran.trains:
        what = "an evaluation" if ran.evaluation else "a replay"
        raise UserError(f"run {of_run.run_id} is {what}, which has no steps of its own; give the run that has trained")
    if not isinstance(job, Config):
        raise UserError(
            f"run {of_run.run_id} trained with a program of yours, whose steps only that program can compute; podrun replays "
            "runs of a train.yaml"
        )
    if job.parallel.model_per_device:
        raise UserError(
            f"run {of_run.run_id} trained under parallel {job.parallel.name}: each device has a model of its own, so no two "
            "compute the same; there is nothing to compare"
        )
    _check_steps(request, of_run, job)
    spec = _on_pod(request, of_run, ran, job)
    pod = _chosen(spec.pod, request.on, job)
    launch = job.launch.model_copy(update={"max_restarts": 0, "max_preemptions": 0, "verify_every": 0})
    assert isinstance(spec.job, Config)
    return replace(
        spec,
        pod=replace(pod, spares=(), min_hosts=None, excludes_bad=False),
        job=spec.job.model_copy(update={"launch": launch}),
        inject=_injected(request, pod, launch.process_per),
        replay=Replay(
            request.first,
            request.last,
            request.times,
            is_rehearsal=bool(request.inject),
            resumed=resumed_from(of_run),
        ),
        label=Label(name=f"replay {of_run.run_id}"),
        command=request.command,
    )


def _check_steps(request: ReplayRequest, of_run: RunDirectory, job: Config) -> None:
    """Raise UserError if the run has not done these steps."""
    if request.last - request.first >= MOST_STEPS:
        raise UserError(
            f"--step {request.first}-{request.last}: {request.last - request.first + 1} steps, and a replay compares at most "
            f"{MOST_STEPS}; replay them in pieces"
        )
    before = resumed_from(of_run)
    if before is not None and request.first <= before:
        raise UserError(
            f"--step: run {of_run.run_id} went on from step {before} of an earlier run in its workdir, which has done step "
            f"{request.first}; replay that run (`podrun ps --all`), or a step from {before + 1} on"
        )
    state = read_state(of_run)
    total = job.steps or (state.step["steps"] if state.step else None)
    if total is not None and request.last > total:
        raise UserError(f"--step: run {of_run.run_id} ends with step {total}, and there is no step {request.last}")
    done = max([event["step"] for event in (state.step, state.checkpoint) if event], default=0)
    done = max(done, state.resumed or 0, _not_finite(of_run) or 0)
    if request.last > done:
        reached = f"the last one on record is {done}" if done else "it has none on record"
        raise UserError(f"--step: run {of_run.run_id} has not done step {request.last} yet; {reached}")


def _not_finite(of_run: RunDirectory) -> int | None:
    """Return the step that ended the run because its loss was not finite; None if it ended otherwise. It is not on record."""
    steps: list[int | None] = []
    for event in of_run.newest_events():
        if event["event"] == EventKind.START:
            break
        if event["event"] == EventKind.ERROR and event["kind"] == ErrorKind.NOT_FINITE:
            steps.append(event.get("step"))
    return max((step for step in steps if step is not None), default=None)


def _on_pod(request: ReplayRequest, of_run: RunDirectory, ran: RunSpec, job: Config) -> RunSpec:
    """Return the spec of a run of the same job on the pod that the options name, or else on that of the run."""
    if request.where.names_pod:
        on_launcher = ran.data.on_launcher(job) if ran.data else job
        typed = Request(None, where=request.where, workdir=ran.workdir)
        if queue := queue_name(typed):
            raise UserError(
                f"--{queue} submits a run and returns, and a replay has a result to wait for; replay on hosts that you have, "
                "such as those of a job of yours (--hosts-from)"
            )
        spec = make_spec(typed, of_run=on_launcher, folder=ran.cwd)
        return replace(spec, cwd=ran.cwd if ran.cwd.is_dir() else spec.cwd)
    if ran.pod.traits.queue or not ran.pod.hosts:
        raise UserError(
            f"run {of_run.run_id} got its hosts from a queue, which may have given them to others since; name the hosts to "
            "replay on, such as those of a job of yours (--hosts-from), or --slice cpu-4x1 --simulate"
        )
    return replace(ran, run_id=new_run_id(), detached=False, pull=None, owner="", executables="", stored="")


def _chosen(pod: Pod, names: tuple[str, ...], job: Config) -> Pod:
    """Return the pod with only the hosts of these names. Raises UserError if it has none of a name, or cannot be divided."""
    if not names:
        return pod
    by_name = {host.name: host for host in pod.all_hosts}
    if unknown := [name for name in names if name not in by_name]:
        raise UserError(f"--on: the pod has no host {unknown[0]}; it has {first_names([*by_name], 8)}")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UserError(f"--on: {twice[0]} is given twice; keep one")
    hosts = [host for host in pod.all_hosts if host.name in names]
    if len(hosts) == len(pod.hosts):
        return pod.with_hosts(hosts)
    if not pod.slice.can_shrink:
        raise UserError(
            f"--on: the hosts of a {pod.slice.name} are wired together, so some of them alone are no slice; leave --on out, "
            "or name another pod with --pod or --slice"
        )
    from podrun.runtime.config import shrinking_problem

    if problem := shrinking_problem(job, len(hosts) * pod.slice.devices_per_host):
        raise UserError(f"--on: the job cannot run on {len(hosts)} of {len(pod.hosts)} hosts: {problem}")
    return pod.with_hosts(hosts)


def _injected(request: ReplayRequest, pod: Pod, process_per: str) -> tuple[str, ...]:
    """Return the faults with their hosts and processes. They strike at the first compared step unless they name one."""
    for text in request.inject:
        if (kind := text.partition("@")[0].partition(":")[0]) not in _KINDS:
            raise UserError(f"--inject {kind}: a replay rehearses {' and '.join(_KINDS)}; take one of them")
    texts = [text if "@" in text else f"{text}@step={request.first}" for text in request.inject]
    return resolve_injections(texts, pod, process_per, is_program=False)


def _text(result: Result, of_run: RunDirectory) -> str:
    return "\n".join(
        [
            f"replay of {of_run.run_id}: {in_one_line(result.sentence)}",
            *(f"  {in_one_line(row)}" for row in result.compared),
        ]
    )


def _json(result: Result, request: ReplayRequest, of_run: RunDirectory) -> str:
    fields = {
        "run": of_run.run_id,
        "first": request.first,
        "last": request.last,
        "times": request.times,
        **asdict(result),
    }
    return json.dumps(fields)
