"""A plan, a transport that is recorded, and an observer, for tests of attempts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from podrun.launcher.agent.base.from_agent import Exit
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import LaunchPlan, make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.transport.local import LocalTransport
from podrun.launcher.transport.process_channel import ProcessChannel
from podrun.runtime.config import Launch


def exit_of(process: int, code: int, **more: Any) -> Exit:
    """Return the frame for the exit of a process that was not asked to stop."""
    return cast(Exit, {"type": "exit", "process": process, "code": code, "error": None, "asked": False, **more})


class Recorded(LocalTransport):
    """Remembers the channels of each host."""

    def __init__(self, pod: Pod) -> None:
        super().__init__(pod)
        self.channels: dict[str, list[ProcessChannel]] = {host.name: [] for host in pod.hosts}

    def open(self, host: Host, argv: Sequence[str]) -> ProcessChannel:
        channel = super().open(host, argv)
        self.channels[host.name].append(channel)
        return channel


class Watching:
    """An observer that keeps all events and calls `react` with each."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.react: Callable[[dict[str, Any]], None] = lambda event: None

    def event(self, event: Any) -> None:
        self.events.append(event)
        self.react(event)

    def output(self, process: int, data: bytes) -> None:
        pass


def plan_of(slice: str, folder: Path, *command: str, lease: float = 10.0) -> LaunchPlan:
    pod = replace(simulated_pod(parse_slice(slice)), home=str(folder), python=sys.executable)
    program = Program(command, Launch())
    plan = make_plan(RunSpec("r-1", pod, program, folder / "work", folder))
    return replace(plan, hosts=tuple(replace(h, spec={**h.spec, "lease": lease}) for h in plan.hosts))
