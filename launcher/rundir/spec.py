"""Specification of a run: enough to start it, to restart it, or to take it over from another launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from podrun.runtime.contract import Event, EventKind

from ..plan.data_set import DataSet
from ..plan.plan import OWN_PYTHON, Code, LaunchPlan, Program, make_plan
from ..pod.pod import Host, Pod
from ..pod.traits import TRAITS

if TYPE_CHECKING:
    from podrun.runtime.config import Config


@dataclass(frozen=True)
class Label:
    """Text of the user's about a run, by which it is recognised later."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class RunSpec:
    """A run before its first attempt. Holds names of secrets, never their values."""

    run_id: str
    pod: Pod
    job: Config | Program
    workdir: Path
    cwd: Path
    code: Code | None = None
    detached: bool = False
    owner: str = ""
    """Owner of the train.yaml that named the workdir; empty if the user chose the workdir, or it is on this machine."""
    inject: tuple[str, ...] = ()
    """Faults that a rehearsal injects, in full."""
    data: DataSet | None = None
    """Data that is brought to the hosts; `job` has its paths there."""
    pull: Path | None = None
    """Folder on the launcher's machine that results are brought to at the end."""
    label: Label = Label()
    command: tuple[str, ...] = ()
    """Arguments of podrun, as typed."""

    def plan(
        self, attempt: int, secrets: Mapping[str, str], hosts: Sequence[Host] | None = None, saved: str = ""
    ) -> LaunchPlan:
        """Return the plan of an attempt, on all hosts of the pod or on those given. `saved` is as in `WorkerEnv`."""
        return make_plan(
            self.pod if hosts is None else self.pod.with_hosts(hosts),
            self.job,
            run_id=self.run_id,
            attempt=attempt,
            workdir=self.workdir,
            cwd=self.cwd,
            code=self.code,
            secrets=secrets,
            detached=self.detached,
            owner=self.owner,
            inject=self.inject,
            data=self.data,
            saved=saved,
        )

    def to_json(self) -> bytes:
        return _adapter(isinstance(self.job, Program)).dump_json(self, indent=1)

    @classmethod
    def from_json(cls, text: bytes) -> RunSpec:
        """Parse a spec. Raise ValueError if it is malformed, or of another version."""
        recorded = from_json(text)
        job = recorded.get("job") if isinstance(recorded, dict) else None
        spec = _adapter(isinstance(job, dict) and "argv" in job).validate_json(text)
        if spec.pod.transport not in TRAITS:
            raise ValueError(f"pod.transport is {spec.pod.transport!r}, expected one of {', '.join(TRAITS)}")
        return spec


@cache
def _adapter(is_program: bool) -> TypeAdapter[RunSpec]:
    """Return what reads and writes specs. A program's does not import the sections of train.yaml, which take long."""
    if is_program:
        Config: Any = Program  # pydantic looks here for what the annotations of RunSpec name
    else:
        from podrun.runtime.config import Config  # noqa: F401
    return TypeAdapter(RunSpec)


def start_event(plan: LaunchPlan, logs: Path, time: float) -> Event:
    """Return the first event of an attempt, with the parts of the plan that views need."""
    job = plan.job
    return {
        "event": EventKind.START,
        "time": time,
        "run_id": plan.run_id,
        "attempt": plan.attempt,
        "slice": plan.pod.slice.name,
        "devices": plan.pod.slice.devices_per_host,
        "transport": plan.pod.transport,
        "hosts": {h.host.name: [p.process_id for p in h.processes] for h in plan.hosts},
        "program": " ".join(job.argv) if isinstance(job, Program) else None,
        "python": plan.python if isinstance(job, Program) and job.argv[0] in OWN_PYTHON else None,
        "workdir": os.fspath(plan.workdir),
        "logs": os.fspath(logs),
    }
