"""PURE: (pod, config) -> LaunchPlan, everything that will be done on every host, printable before it is done."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podrun.runtime.config import Config
from podrun.runtime.contract import CONFIG_FILE, WorkerEnv, events_stream, output_stream

from .pod import Host, Pod

AGENT = Path(__file__).with_name("agent.py")
LEASE = 10.0  # seconds without a word from the launcher after which an attached run's agents stop


@dataclass(frozen=True)
class ProcessPlan:
    """One worker process."""

    process_id: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str


@dataclass(frozen=True)
class HostPlan:
    """What happens on one host: its agent, the files it writes, the processes it starts."""

    host: Host
    agent: tuple[str, ...]
    directory: Path
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
    config: Config
    workdir: Path
    hosts: tuple[HostPlan, ...] = field(repr=False)

    def spec(self, host: HostPlan) -> dict[str, Any]:
        """What the agent on `host` is told, over its stdin."""
        return {
            "run": self.run_id,
            "attempt": self.attempt,
            "dir": str(host.directory),
            "lease": LEASE,
            "grace": self.config.launch.stop_grace,
            "files": dict(host.files),
            "coordinator": host.coordinator,
            "processes": [
                {
                    "process": p.process_id,
                    "argv": list(p.argv),
                    "env": dict(p.env),
                    "cwd": p.cwd,
                    "output": output_stream(p.process_id),
                    "events": events_stream(p.process_id),
                }
                for p in host.processes
            ],
        }

    def render(self) -> str:
        """The plan as text: per host the command, the environment and the files, quoted for a POSIX shell."""
        slice = self.pod.slice
        lines = [
            f"run {self.run_id}: {slice.name}, {slice.hosts} hosts x {slice.devices_per_host} devices "
            f"({self.pod.platform}), reached by {self.pod.transport}",
            f"workdir {self.workdir}",
        ]
        for host in self.hosts:
            lines += ["", f"{host.host.name} ({host.host.address})", f"  agent    {shlex.join(host.agent)}"]
            for process in host.processes:
                lines += [f"  process  {process.process_id}", f"  cwd      {shlex.quote(process.cwd)}"]
                lines += [f"  env      {name}={shlex.quote(value)}" for name, value in sorted(process.env.items())]
                lines += [f"  command  {shlex.join(process.argv)}"]
            lines += [f"  file     {host.directory / name} ({len(text)} bytes)" for name, text in host.files.items()]
        lines += ["", f"{CONFIG_FILE} on every host:", self.config.model_dump_json(indent=2)]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The plan as a record of the run."""
        return json.dumps(
            {
                "run_id": self.run_id,
                "attempt": self.attempt,
                "slice": self.pod.slice.name,
                "transport": self.pod.transport,
                "workdir": str(self.workdir),
                "hosts": [{"host": h.host.name, "address": h.host.address, **self.spec(h)} for h in self.hosts],
            },
            indent=1,
        )


def make_plan(
    pod: Pod, config: Config, *, run_id: str, attempt: int, workdir: Path, run_directory: Path, cwd: Path
) -> LaunchPlan:
    """The plan of one attempt. Paths are those on the hosts."""
    python = config.launch.python or sys.executable
    # The workers get the job as it was resolved here: no default of theirs can differ.
    resolved = config.model_copy(update={"launch": config.launch.model_copy(update={"workdir": workdir})})
    text = resolved.model_dump_json(indent=1)
    hosts = []
    for process_id, host in enumerate(pod.hosts):
        directory = run_directory / "hosts" / f"{host.name}.{attempt}"
        worker = WorkerEnv(
            run_id=run_id,
            attempt=attempt,
            host=host.name,
            process_id=process_id,
            num_processes=len(pod.hosts),
            local_devices=pod.slice.devices_per_host,
            slice=pod.slice.name,
            directory=directory,
        )
        env = {**_platform_env(pod), "PYTHONUNBUFFERED": "1", **config.launch.env, **worker.to_env()}
        process = ProcessPlan(process_id, (python, "-m", "podrun.runtime"), env, os.fspath(cwd))
        hosts.append(
            HostPlan(
                host=host,
                agent=(sys.executable, "-I", "-S", os.fspath(AGENT)),
                directory=directory,
                files={CONFIG_FILE: text},
                processes=(process,),
                coordinator=process_id == 0,
            )
        )
    return LaunchPlan(run_id, attempt, pod, resolved, workdir, tuple(hosts))


def _platform_env(pod: Pod) -> dict[str, str]:
    """What makes JAX see the devices of the slice, and nothing else if they are missing."""
    if pod.platform != "cpu":
        return {"JAX_PLATFORMS": f"{pod.platform},cpu"}
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(pod.slice.devices_per_host),
        # XLA's CPU client sizes its thread pool by NPROC, and a collective holds a thread per device: with fewer threads
        # than devices a step would wait for ever. More threads than needed cost time (docs/performance.md).
        "NPROC": str(max(pod.slice.devices_per_host, os.cpu_count() or 1)),
        # glibc gives large buffers back to the kernel at each free and faults them in again at each step; keeping them
        # takes a quarter off a step (docs/performance.md).
        "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    }
