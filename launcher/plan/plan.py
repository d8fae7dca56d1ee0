"""Build the LaunchPlan of a run: all actions on every host, printable before they are executed. PURE."""

from __future__ import annotations

import json
import os
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from podrun.runtime.config import Launch, bucket_url
from podrun.runtime.config.xla_presets import with_presets
from podrun.runtime.contract import (
    CONFIG_FILE,
    ENV_EVALUATE,
    ENV_EXECUTABLES,
    ENV_INJECT,
    ENV_MEMORY,
    ENV_OWNER,
    ENV_REPLAY,
    ENV_SAVED,
    ENV_WORKDIR,
    WorkerEnv,
    beat_file,
    events_stream,
    output_stream,
    profile_order,
)
from podrun.runtime.injection import parse_checked

from ..agent.base.places import agent_folder, environments_folder, memory_folder
from ..agent.base.protocol import INSTRUMENT
from ..agent.base.to_agent import Spec, WorkerSpec
from ..pod.pod import Host, Pod, process_name
from ..pod.slices import Slice
from .agent_file import agent_command
from .base_env import RUNTIME, base_env, multislice_env, names_of
from .container import container_request, worker_inside
from .program import OWN_PYTHON, Program, filled, instrument_files, program_env
from .spec import RunSpec

if TYPE_CHECKING:
    from podrun.runtime.config import Config

LEASE = 10.0  # seconds without a frame from the launcher after which the agents of an attached run stop
LEASE_PER_HOST = 0.1  # seconds added per simulated host, because very many share this machine's cores
NETWORK_LEASE = 15.0  # seconds for hosts behind a network, where connections may drop and be reopened
DETACHED_LEASE = 24 * 3600.0  # seconds for a detached run, until a launcher attaches again
_HIDDEN = "(secret)"


@dataclass(frozen=True)
class HostPlan:
    """The plan of one host."""

    host: Host
    agent: tuple[str, ...]
    """Command that starts the agent."""
    spec: Spec = field(repr=False)
    """Spec that the agent reads from its stdin: its settings and its workers. Contains the secrets."""

    @property
    def processes(self) -> list[int]:
        """Return the numbers of the host's processes."""
        return [worker["process"] for worker in self.spec["processes"]]

    def log_name(self, process: int) -> str:
        """Return the name of a process's log, without its suffix."""
        return process_name(self.host.name, process, len(self.spec["processes"]))


@dataclass(frozen=True)
class LaunchPlan:
    """One attempt of one run."""

    run: RunSpec
    """The run with the hosts of this attempt; its job contains the workdir."""
    attempt: int
    secrets: Mapping[str, str] = field(repr=False)
    """Environment variables whose values are neither printed nor recorded."""
    hosts: tuple[HostPlan, ...] = field(repr=False)

    @property
    def pod(self) -> Pod:
        return self.run.pod

    @property
    def lease(self) -> float:
        """Return the seconds after which an agent stops its workers if it receives nothing from the launcher."""
        return self.hosts[0].spec["lease"]

    @property
    def launch(self) -> Launch:
        return self.run.job.launch

    @property
    def is_program(self) -> bool:
        return isinstance(self.run.job, Program)

    def with_secrets(self, more: Mapping[str, str]) -> LaunchPlan:
        """Return the plan with more environment variables of all workers whose values are hidden."""
        hosts = []
        for host in self.hosts:
            workers: list[WorkerSpec] = [
                {**worker, "env": {**worker["env"], **more}} for worker in host.spec["processes"]
            ]
            hosts.append(replace(host, spec={**host.spec, "processes": workers}))
        return replace(self, secrets={**self.secrets, **more}, hosts=tuple(hosts))

    def render(self) -> str:
        """Return the plan as text: per host the command, the environment and the files, quoted for a POSIX shell."""
        run, slice = self.run, self.pod.slice
        lines = [
            f"run {run.run_id}: {slice.name}, {slice.hosts} hosts x {slice.devices_per_host} devices "
            f"({self.pod.platform}){_in_slices(slice)}, {self.pod.traits.reached}",
            f"workdir {bucket_url.url(run.workdir) or run.workdir}",
            *(f"injects {text}" for text in run.inject),
        ]
        if self.pod.container:
            lines += [f"container {self.pod.container.render()}"]
        if run.code:
            lines += [f"project {run.code.project}", f"podrun  {run.code.podrun}"]
        if run.executables:
            lines += [f"compiled {run.executables}"]
        if run.data:
            lines += run.data.render(self.pod.home)
        for host in self.hosts:
            lines += ["", f"{host.host.name} ({host.host.address})", f"  agent    {shlex.join(host.agent)}"]
            for worker in host.spec["processes"]:
                lines += [f"  process  {worker['process']}", f"  cwd      {shlex.quote(worker['cwd'])}"]
                lines += [
                    f"  env      {name}={shlex.quote(value)}"
                    for name, value in sorted(worker["env"].items())
                    if name not in self.secrets
                ]
                lines += [f"  env      {name}={_HIDDEN}" for name in sorted(self.secrets)]
                lines += [f"  path     {name}={':'.join(folders)}" for name, folders in worker["path"].items()]
                lines += [f"  command  {shlex.join(worker['argv'])}"]
            spec = host.spec
            lines += [f"  file     {spec['dir']}/{name} ({len(text)} bytes)" for name, text in spec["files"].items()]
        if not isinstance(run.job, Program):
            lines += ["", f"{CONFIG_FILE} on every host:", run.job.model_dump_json(indent=2)]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the plan as JSON for the run's records, without the values of secrets."""
        run = self.run
        return json.dumps(
            {
                "run_id": run.run_id,
                "attempt": self.attempt,
                "slice": self.pod.slice.name,
                "transport": self.pod.transport,
                "workdir": bucket_url.url(run.workdir) or str(run.workdir),
                "data": [asdict(key) for key in run.data.keys] if run.data else [],
                "hosts": [
                    {"host": h.host.name, "address": h.host.address, **self._without_secrets(h.spec)}
                    for h in self.hosts
                ],
            },
            indent=1,
        )

    def _without_secrets(self, spec: Spec) -> dict[str, object]:
        hidden = dict.fromkeys(self.secrets, _HIDDEN)
        workers = [{**worker, "env": {**worker["env"], **hidden}} for worker in spec["processes"]]
        return {name: value for name, value in {**spec, "processes": workers}.items() if name != "type"}


def _in_slices(slice: Slice) -> str:
    return f" in {slice.slices} slices" if slice.slices > 1 else ""


def make_plan(
    spec: RunSpec,
    attempt: int = 0,
    secrets: Mapping[str, str] | None = None,
    hosts: Sequence[Host] | None = None,
    saved: str = "",
) -> LaunchPlan:
    """Return the plan of one attempt.

    Args:
        spec: the run.
        attempt: its number.
        secrets: environment variables of the workers whose values are hidden.
        hosts: the hosts of the attempt; None: all hosts of the pod.
        saved: see `WorkerEnv`.
    """
    if not isinstance(job := spec.job, Program):
        # the workers get the resolved job, so that their defaults cannot differ
        job = job.model_copy(update={"launch": job.launch.model_copy(update={"workdir": spec.workdir})})
    run = replace(spec, job=job, pod=spec.pod if hosts is None else spec.pod.with_hosts(hosts))
    secrets = dict(secrets or {})
    agent = agent_command(run.pod, "run", run.run_id)
    plans = (
        HostPlan(host, agent, _agent_spec(run, attempt, number, secrets, saved))
        for number, host in enumerate(run.pod.hosts)
    )
    return LaunchPlan(run, attempt, secrets, tuple(plans))


def _agent_spec(run: RunSpec, attempt: int, number: int, secrets: Mapping[str, str], saved: str) -> Spec:
    """Return the spec for the agent on host `number` of the run."""
    pod, launch, host = run.pod, run.job.launch, run.pod.hosts[number]
    directory, files = agent_folder(pod.home, run.run_id, host.name, attempt), _files(run.job)
    spec: Spec = {
        "type": "spec",
        "run": run.run_id,
        "attempt": attempt,
        "home": pod.home,
        "dir": directory,
        "lease": DETACHED_LEASE if run.detached else attached_lease(pod),
        "grace": launch.stop_grace,
        "files": files,
        "code": run.code.project if run.code else None,
        "uses": _uses(run),
        "exclusive": pod.traits.is_exclusive,
        # all simulated hosts are one machine, which is measured once
        "measures": number == 0 or not pod.traits.is_simulated,
        "devices": pod.platform,
        "coordinator": number == 0,
        "is_program": isinstance(run.job, Program),
        "ports": list(pod.ports) if pod.ports else None,
        "internal": host.internal,
        "processes": [
            {
                "process": worker.process_id,
                "argv": _argv(run),
                "env": {
                    **multislice_env(pod, number),
                    **_worker_env(run, worker),
                    **({ENV_SAVED: saved} if saved and worker.process_id == 0 else {}),
                    **secrets,
                },
                "path": _path(run, directory, files),
                "threads": worker.local_devices if pod.platform == "cpu" else None,
                "names": names_of(pod, host),
                "cwd": str(PurePosixPath("code", run.code.subfolder)) if run.code else os.fspath(run.cwd),
                "container": container_request(pod, run.workdir),
                "output": output_stream(worker.process_id),
                "events": events_stream(worker.process_id),
                "beat": beat_file(worker.process_id),
                "profile": profile_order(worker.process_id),
            }
            for worker in _workers(run, attempt, number, directory)
        ],
    }
    if _keeps_in_memory(run):
        spec["memory"] = memory_folder(run.run_id, host.name)
    return spec


def _keeps_in_memory(run: RunSpec) -> bool:
    """Return whether the job keeps checkpoints in the memory of the hosts."""
    return not isinstance(run.job, Program) and run.trains and run.job.checkpoint.memory_every > 0


def attached_lease(pod: Pod) -> float:
    """Return the lease of the agents while the launcher is attached, which waits at least as long for a silent host."""
    return max(LEASE, LEASE_PER_HOST * len(pod.hosts)) if pod.traits.is_simulated else NETWORK_LEASE


def _files(job: Config | Program) -> dict[str, str]:
    """Return the files that the agent of each host writes, by name."""
    if not isinstance(job, Program):
        return {CONFIG_FILE: job.model_dump_json(indent=1)}
    return {**instrument_files()} if job.launch.instrument else {}


def _uses(run: RunSpec) -> list[str]:
    """Return the folders on each host that `podrun clean` must not remove during the run."""
    if run.code is None:
        return []
    python = PurePosixPath(run.code.python)
    in_environment = PurePosixPath(environments_folder(run.pod.home)) in python.parents
    environment = [str(python.parents[1])] if in_environment else []
    data = [run.data.folder(run.pod.home)] if run.data else []
    executables = [posixpath.dirname(run.executables)] if run.executables else []
    return [run.code.project, run.code.podrun, *environment, *data, *executables]


def _workers(run: RunSpec, attempt: int, number: int, directory: str) -> list[WorkerEnv]:
    """Return the processes of one host: one with all its devices, or one per device."""
    devices = range(run.pod.slice.devices_per_host)
    shares = [tuple(devices)] if run.job.launch.process_per == "host" else [(device,) for device in devices]
    return [
        WorkerEnv(
            run_id=run.run_id,
            attempt=attempt,
            host=run.pod.hosts[number].name,
            process_id=number * len(shares) + i,
            num_processes=len(run.pod.hosts) * len(shares),
            local_device_ids=share,
            slice=run.pod.slice.name,
            directory=Path(directory),
            local_rank=i,
            local_size=len(shares),
        )
        for i, share in enumerate(shares)
    ]


def _argv(run: RunSpec) -> list[str]:
    """Return the command of each worker."""
    if not isinstance(run.job, Program):
        return [*worker_inside(run.pod, run.python, *RUNTIME)]
    name, *arguments = run.job.argv
    return [*worker_inside(run.pod, run.python if name in OWN_PYTHON else name, *arguments)]


def _worker_env(run: RunSpec, worker: WorkerEnv) -> dict[str, str]:
    faults = [i for i in parse_checked(run.inject) if i.process == worker.process_id and not i.by_launcher]
    return {
        **base_env(run.pod, worker.local_device_ids),
        **(program_env(worker, run.job.launch.join) if isinstance(run.job, Program) else {}),
        **filled(_user_env(run), worker),
        **worker.to_env(),
        ENV_WORKDIR: str(run.workdir),
        **({ENV_OWNER: run.owner} if run.owner else {}),
        **({ENV_EXECUTABLES: run.executables} if run.executables else {}),
        **({ENV_EVALUATE: json.dumps(asdict(run.evaluation))} if run.evaluation else {}),
        **({ENV_REPLAY: json.dumps(asdict(run.replay))} if run.replay else {}),
        **({ENV_INJECT: " ".join(map(str, faults))} if faults else {}),
        **({ENV_MEMORY: memory_folder(run.run_id, worker.host)} if _keeps_in_memory(run) else {}),
    }


def _user_env(run: RunSpec) -> dict[str, str]:
    launch = run.job.launch
    return with_presets({**run.pod.env, **launch.env}, launch.xla, run.pod.platform)


def _path(run: RunSpec, directory: str, files: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the folders to put in front of the host's own in the workers' PATH and PYTHONPATH."""
    modules = [posixpath.join(directory, INSTRUMENT)] if instrument_files().keys() <= files.keys() else []
    modules += [run.code.podrun] if run.code else []
    folder = str(PurePosixPath(run.python).parent)
    is_named = folder != "." and (run.code or isinstance(run.job, Program))
    paths = {"PYTHONPATH": modules, "PATH": [folder] if is_named and not run.pod.container else []}
    return {name: folders for name, folders in paths.items() if folders}  # in a container, PATH is the image's
