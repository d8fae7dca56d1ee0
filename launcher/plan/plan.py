"""Build the LaunchPlan of a pod and a job: all actions on every host, printable before they are executed. PURE."""

from __future__ import annotations

import json
import os
import posixpath
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from podrun.runtime.config import Launch, bucket_url
from podrun.runtime.contract import (
    CONFIG_FILE,
    ENV_INJECT,
    ENV_OWNER,
    ENV_SAVED,
    ENV_WORKDIR,
    WorkerEnv,
    beat_file,
    events_stream,
    output_stream,
    profile_order,
)
from podrun.runtime.injection import parse_checked

from ..agent.base.places import agent_folder, environments_folder
from ..agent.base.protocol import INSTRUMENT
from ..agent.base.to_agent import Spec
from ..pod.pod import Host, Pod
from ..pod.slices import Slice
from .agent_file import agent_command
from .base_env import RUNTIME, base_env, multislice_env, names_of
from .container import container_request, worker_inside
from .data_set import DataSet
from .program import filled, instrument_files, program_env

if TYPE_CHECKING:
    from podrun.runtime.config import Config

LEASE = 10.0  # seconds without a frame from the launcher after which the agents of an attached run stop
LEASE_PER_HOST = 0.1  # seconds added per simulated host, because very many share this machine's cores
NETWORK_LEASE = 15.0  # seconds for hosts behind a network, where connections may drop and be reopened
DETACHED_LEASE = 24 * 3600.0  # seconds for a detached run, until a launcher attaches again
_HIDDEN = "(secret)"


OWN_PYTHON = ("python", "python3")
"""Program names that mean the run's own interpreter, not the first in the host's PATH."""


@dataclass(frozen=True)
class Program:
    """A user program, which runs instead of podrun's runtime."""

    argv: tuple[str, ...]
    launch: Launch


@dataclass(frozen=True)
class Code:
    """Paths of the code on the hosts; a leading `~/` is the login directory."""

    project: str
    """Folder of the project; every run gets a copy of it."""
    subfolder: str
    """Folder below `project` in which podrun was called."""
    podrun: str
    """Folder that contains podrun.runtime, for PYTHONPATH."""
    python: str
    """Interpreter of the workers."""


@dataclass(frozen=True)
class ProcessPlan:
    """One worker process."""

    process_id: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    """Working directory on the host, absolute or relative to the run's folder there."""


@dataclass(frozen=True)
class HostPlan:
    """The plan of one host: its agent, the files it writes, the processes it starts."""

    host: Host
    agent: tuple[str, ...]
    directory: str
    """The run's folder on the host; a leading `~/` is the login directory."""
    files: Mapping[str, str]
    processes: tuple[ProcessPlan, ...]
    coordinator: bool
    """This host reserves the port of process 0."""


@dataclass(frozen=True)
class LaunchPlan:
    """One attempt of one run."""

    run_id: str
    attempt: int
    pod: Pod
    job: Config | Program
    workdir: Path
    lease: float
    """Seconds without a frame from the launcher after which the agents stop."""
    code: Code | None
    """None: the hosts are this machine and use its files."""
    python: str
    """Interpreter of the workers; also used for user programs that are called `python`."""
    secrets: Mapping[str, str] = field(repr=False)
    """Environment variables whose values are neither printed nor recorded."""
    hosts: tuple[HostPlan, ...] = field(repr=False)
    inject: tuple[str, ...] = ()
    """Faults to inject."""
    data: DataSet | None = None
    """Data that is copied to the hosts; the job contains the paths there."""

    @property
    def launch(self) -> Launch:
        return self.job.launch

    @property
    def is_program(self) -> bool:
        return isinstance(self.job, Program)

    def log_name(self, host: HostPlan, process_id: int) -> str:
        """Return the name of a process's log, without its suffix."""
        return host.host.name if len(host.processes) == 1 else f"{host.host.name}.{process_id}"

    def spec(self, host: HostPlan) -> Spec:
        """Return the spec that the agent on `host` reads from its stdin. Contains the secrets."""
        return self._spec(host, self.secrets)

    def _spec(self, host: HostPlan, secrets: Mapping[str, str]) -> Spec:
        return {
            "type": "spec",
            "run": self.run_id,
            "attempt": self.attempt,
            "home": self.pod.home,
            "dir": host.directory,
            "lease": self.lease,
            "grace": self.launch.stop_grace,
            "files": dict(host.files),
            "code": self.code.project if self.code else None,
            "uses": self._uses(),
            "exclusive": self.pod.traits.is_exclusive,
            # all simulated hosts are one machine, which is measured once
            "measures": not self.pod.traits.is_one_machine or host is self.hosts[0],
            "devices": self.pod.platform,
            "coordinator": host.coordinator,
            "is_program": self.is_program,
            "ports": list(self.pod.ports) if self.pod.ports else None,
            "internal": host.host.internal,
            "processes": [
                {
                    "process": p.process_id,
                    "argv": list(p.argv),
                    "env": {**p.env, **secrets},
                    "path": self._path(host),
                    "threads": len(p.env["PODRUN_LOCAL_DEVICE_IDS"].split(",")) if self.pod.platform == "cpu" else None,
                    "names": names_of(self.pod, host.host),
                    "cwd": p.cwd,
                    "container": container_request(self.pod, self.workdir),
                    "output": output_stream(p.process_id),
                    "events": events_stream(p.process_id),
                    "beat": beat_file(p.process_id),
                    "profile": profile_order(p.process_id),
                }
                for p in host.processes
            ],
        }

    def _uses(self) -> list[str]:
        """Return the folders on a host that other commands must not remove during the run."""
        if self.code is None:
            return []
        python = PurePosixPath(self.code.python)
        in_environment = PurePosixPath(environments_folder(self.pod.home)) in python.parents
        environment = [str(python.parents[1])] if in_environment else []
        data = [self.data.folder(self.pod.home)] if self.data else []
        return [self.code.project, self.code.podrun, *environment, *data]

    def _path(self, host: HostPlan) -> dict[str, list[str]]:
        """Return the folders that precede the host's own in the workers' PATH and PYTHONPATH."""
        modules = [posixpath.join(host.directory, INSTRUMENT)] if instrument_files().keys() <= host.files.keys() else []
        modules += [self.code.podrun] if self.code else []
        programs = str(PurePosixPath(self.python).parent)
        paths = {
            "PYTHONPATH": modules,
            # in a container, PATH is the image's
            "PATH": [programs] if programs != "." and (self.code or self.is_program) and not self.pod.container else [],
        }
        return {name: folders for name, folders in paths.items() if folders}

    def render(self) -> str:
        """Return the plan as text: per host the command, the environment and the files, quoted for a POSIX shell."""
        slice = self.pod.slice
        lines = [
            f"run {self.run_id}: {slice.name}, {slice.hosts} hosts x {slice.devices_per_host} devices "
            f"({self.pod.platform}){_in_slices(slice)}, reached by {self.pod.transport}",
            f"workdir {bucket_url.url(self.workdir) or self.workdir}",
            *(f"injects {text}" for text in self.inject),
        ]
        if self.pod.container:
            lines += [f"container {self.pod.container.render()}"]
        if self.code:
            lines += [f"project {self.code.project}", f"podrun  {self.code.podrun}"]
        if self.data:
            lines += self.data.render(self.pod.home)
        for host in self.hosts:
            lines += ["", f"{host.host.name} ({host.host.address})", f"  agent    {shlex.join(host.agent)}"]
            for process in host.processes:
                lines += [f"  process  {process.process_id}", f"  cwd      {shlex.quote(process.cwd)}"]
                lines += [
                    f"  env      {name}={shlex.quote(value)}"
                    for name, value in sorted(process.env.items())
                    if name not in self.secrets
                ]
                lines += [f"  env      {name}={_HIDDEN}" for name in sorted(self.secrets)]
                lines += [f"  path     {name}={':'.join(folders)}" for name, folders in self._path(host).items()]
                lines += [f"  command  {shlex.join(process.argv)}"]
            lines += [f"  file     {host.directory}/{name} ({len(text)} bytes)" for name, text in host.files.items()]
        if not isinstance(self.job, Program):
            lines += ["", f"{CONFIG_FILE} on every host:", self.job.model_dump_json(indent=2)]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the plan as JSON for the run's records, without the values of secrets."""
        hidden = dict.fromkeys(self.secrets, _HIDDEN)
        return json.dumps(
            {
                "run_id": self.run_id,
                "attempt": self.attempt,
                "slice": self.pod.slice.name,
                "transport": self.pod.transport,
                "workdir": bucket_url.url(self.workdir) or str(self.workdir),
                "data": [asdict(key) for key in self.data.keys] if self.data else [],
                "hosts": [
                    {"host": h.host.name, "address": h.host.address, **_without_type(self._spec(h, hidden))}
                    for h in self.hosts
                ],
            },
            indent=1,
        )


def _without_type(spec: Spec) -> dict[str, object]:
    return {name: value for name, value in spec.items() if name != "type"}


def _in_slices(slice: Slice) -> str:
    return f" in {slice.slices} slices" if slice.slices > 1 else ""


def make_plan(
    pod: Pod,
    job: Config | Program,
    *,
    run_id: str,
    attempt: int,
    workdir: Path,
    cwd: Path,
    code: Code | None = None,
    secrets: Mapping[str, str] | None = None,
    detached: bool = False,
    owner: str = "",
    inject: tuple[str, ...] = (),
    data: DataSet | None = None,
    saved: str = "",
) -> LaunchPlan:
    """Return the plan of one attempt.

    Args:
        workdir: path on the hosts, as is `cwd`.
        saved: see `WorkerEnv`.
    """
    if not isinstance(job, Program):
        # the workers get the resolved job, so that their defaults cannot differ
        job = job.model_copy(update={"launch": job.launch.model_copy(update={"workdir": workdir})})
    python = code.python if code else job.launch.python or pod.python or sys.executable
    argv = worker_inside(pod, *(_program_argv(job, python) if isinstance(job, Program) else (python, *RUNTIME)))
    hosts = tuple(
        HostPlan(
            host=host,
            agent=agent_command(pod, "run", run_id),
            directory=(directory := agent_folder(pod.home, run_id, host.name, attempt)),
            files=_files(job),
            processes=tuple(
                ProcessPlan(
                    process_id=worker.process_id,
                    argv=argv,
                    env={
                        **multislice_env(pod, number),
                        **_worker_env(pod, job, workdir, worker, owner),
                        **_rehearsal_env(inject, worker),
                        **({ENV_SAVED: saved} if saved and worker.process_id == 0 else {}),
                    },
                    cwd=str(PurePosixPath("code", code.subfolder)) if code else os.fspath(cwd),
                )
                for worker in _workers(pod, job.launch, number, host, run_id, attempt, directory)
            ),
            coordinator=number == 0,
        )
        for number, host in enumerate(pod.hosts)
    )
    lease = DETACHED_LEASE if detached else attached_lease(pod)
    return LaunchPlan(run_id, attempt, pod, job, workdir, lease, code, python, dict(secrets or {}), hosts, inject, data)


def _program_argv(program: Program, python: str) -> tuple[str, ...]:
    """Return the program's command."""
    return (python, *program.argv[1:]) if program.argv[0] in OWN_PYTHON else program.argv


def _files(job: Config | Program) -> Mapping[str, str]:
    """Return the files that each host's agent writes."""
    if not isinstance(job, Program):
        return {CONFIG_FILE: job.model_dump_json(indent=1)}
    return instrument_files() if job.launch.instrument else {}


def attached_lease(pod: Pod) -> float:
    """Return the lease under an attached launcher, which waits at least this long for a silent host."""
    return max(LEASE, LEASE_PER_HOST * len(pod.hosts)) if pod.traits.is_one_machine else NETWORK_LEASE


def _workers(
    pod: Pod, launch: Launch, number: int, host: Host, run_id: str, attempt: int, directory: str
) -> list[WorkerEnv]:
    """Return the processes of one host: one with all its devices, or one per device."""
    devices = range(pod.slice.devices_per_host)
    shares = [tuple(devices)] if launch.process_per == "host" else [(device,) for device in devices]
    return [
        WorkerEnv(
            run_id=run_id,
            attempt=attempt,
            host=host.name,
            process_id=number * len(shares) + i,
            num_processes=len(pod.hosts) * len(shares),
            local_device_ids=share,
            slice=pod.slice.name,
            directory=Path(directory),
            local_rank=i,
            local_size=len(shares),
        )
        for i, share in enumerate(shares)
    ]


def _worker_env(pod: Pod, job: Config | Program, workdir: Path, worker: WorkerEnv, owner: str) -> dict[str, str]:
    return {
        **base_env(pod, worker.local_device_ids),
        **(program_env(worker) if isinstance(job, Program) else {}),
        **filled({**pod.env, **job.launch.env}, worker),
        **worker.to_env(),
        ENV_WORKDIR: str(workdir),
        **({ENV_OWNER: owner} if owner else {}),
    }


def _rehearsal_env(inject: tuple[str, ...], worker: WorkerEnv) -> dict[str, str]:
    """Return the variables with the faults that the worker injects into itself."""
    faults = [i for i in parse_checked(inject) if i.process == worker.process_id and not i.by_launcher]
    return {ENV_INJECT: " ".join(map(str, faults))} if faults else {}
