"""The specification of a run, from which any launcher can start it, restart it, or take it over."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dacite import Config as DaciteConfig
from dacite import DaciteError, from_dict

from podrun.runtime.contract import Event, EventKind

from ..plan.data_set import DataSet
from ..plan.plan import OWN_PYTHON, Code, LaunchPlan, Program, make_plan
from ..pod.pod import Host, Pod
from ..pod.traits import TRAITS

if TYPE_CHECKING:
    from podrun.runtime.config import Config

T = TypeVar("T")
_ON_RECORD = {"queue_job": "slurm_job"}
"""Maps fields of a pod to their older names in spec.json, from when SLURM was the only queue."""


@dataclass(frozen=True)
class Label:
    """The user's name, tags and note for a run."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class RunSpec:
    """A checked run, from which attempts are planned. Contains names of secrets, never their values."""

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
    """Faults to inject, fully resolved."""
    data: DataSet | None = None
    """Data to copy to the hosts; `job` has the paths there."""
    pull: Path | None = None
    """Folder on the launcher's machine to which results are downloaded at the end."""
    label: Label = Label()
    command: tuple[str, ...] = ()
    """Arguments of podrun, as typed."""

    def plan(
        self, attempt: int, secrets: Mapping[str, str], hosts: Sequence[Host] | None = None, saved: str = ""
    ) -> LaunchPlan:
        """Return the plan of an attempt, on the given hosts or on all hosts of the pod. `saved`: see `WorkerEnv`."""
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
        recorded = asdict(self)
        recorded["pod"] = {_ON_RECORD.get(name, name): value for name, value in recorded["pod"].items()}
        return json.dumps(recorded, indent=1, default=_plain).encode()

    @classmethod
    def from_json(cls, text: bytes) -> RunSpec:
        """Parse a spec. Raises ValueError if it is malformed, or of another version."""
        try:
            recorded = json.loads(text)
            recorded["job"] = job = _job(recorded["job"])
            names = {old: name for name, old in _ON_RECORD.items()}
            recorded["pod"] = {names.get(name, name): value for name, value in recorded["pod"].items()}
            spec = _read(cls, recorded, Config=type(job))
        except (DaciteError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no specification of a run: {error}") from None
        if spec.pod.transport not in TRAITS:
            raise ValueError(f"pod.transport is {spec.pod.transport!r}, expected one of {', '.join(TRAITS)}")
        return spec


def _job(recorded: dict[str, Any]) -> Config | Program:
    if "argv" in recorded:
        return _read(Program, recorded)
    from podrun.runtime.config import Config  # slow import that user programs do not need

    return Config.model_validate(recorded)


def _read(kind: type[T], recorded: dict[str, Any], **names: type) -> T:
    """Return a dataclass from its JSON. `names`: types in its annotations that this module does not import."""
    values = {key: _tuples(value) for key, value in recorded.items()}
    return from_dict(kind, values, DaciteConfig(type_hooks={Path: Path}, strict=True, forward_references=names))


def _tuples(value: Any) -> Any:
    """Return a JSON value with lists replaced by tuples."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Convert a value that JSON lacks: the fallback of the JSON encoder."""
    return os.fspath(value) if isinstance(value, Path) else value.model_dump(mode="json")


def start_event(plan: LaunchPlan, logs: Path, time: float) -> Event:
    """Return the first event of an attempt, with the parts of the plan that views show."""
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
