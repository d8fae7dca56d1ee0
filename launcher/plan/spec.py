"""The specification of a run, from which any launcher can start it, restart it, or take it over. PURE."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from podrun.runtime.contract import Evaluation, Replay

from ..pod.pod import Pod
from ..pod.traits import TRAITS
from .program import Program

if TYPE_CHECKING:
    from podrun.runtime.config import Config

    from .data_set import DataSet

T = TypeVar("T")
_ON_RECORD = {"executables": "programs"}
_POD_ON_RECORD = {"queue_job": "slurm_job"}
"""Map fields of a run, and of its pod, to their older names in spec.json, which stay."""


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
    """None: the hosts are this machine and use its files."""
    detached: bool = False
    owner: str = ""
    """Owner of the train.yaml that named the workdir. Empty if the user chose the workdir, or if it is on this machine."""
    inject: tuple[str, ...] = ()
    """Faults to inject, each with its host and process."""
    data: DataSet | None = None
    """Data to copy to the hosts; `job` already has the paths on the hosts."""
    pull: Path | None = None
    """Folder on the launcher's machine to which results are downloaded at the end."""
    executables: str = ""
    """Path on the hosts of the list of stored executables; a leading `~/` is the login directory. Empty: there are none."""
    stored: str = ""
    """Path of the same list on the launcher's machine. `podrun compile` may write it while the run waits in a queue."""
    evaluation: Evaluation | None = None
    """The checkpoint of the workdir to evaluate; None: none."""
    replay: Replay | None = None
    """The steps of the workdir's run to compute again; None: none."""
    label: Label = Label()
    command: tuple[str, ...] = ()
    """Arguments of podrun, as typed."""

    @property
    def python(self) -> str:
        """Return the interpreter of the workers. User programs that are called `python` are run by it, too."""
        return self.code.python if self.code else self.job.launch.python or self.pod.python or sys.executable

    @property
    def trains(self) -> bool:
        """Return True if the run trains; otherwise it only reads the results of another run."""
        return not (self.evaluation or self.replay)

    def to_json(self) -> bytes:
        recorded = _renamed(asdict(self), _ON_RECORD)
        recorded["pod"] = _renamed(recorded["pod"], _POD_ON_RECORD)
        return json.dumps(recorded, indent=1, default=_plain).encode()

    @classmethod
    def from_json(cls, text: bytes) -> RunSpec:
        """Parse a spec. Raises ValueError if it is malformed, or of another version."""
        from .data_set import DataSet  # a new run without data needs it not

        try:
            recorded = _renamed(json.loads(text), {old: name for name, old in _ON_RECORD.items()})
            recorded["job"] = job = _job(recorded["job"])
            recorded["pod"] = _renamed(recorded["pod"], {old: name for name, old in _POD_ON_RECORD.items()})
            spec = _read(cls, recorded, Config=type(job), DataSet=DataSet)
        except (TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no specification of a run: {error}") from None
        if spec.pod.transport not in TRAITS:
            raise ValueError(f"pod.transport is {spec.pod.transport!r}, expected one of {', '.join(TRAITS)}")
        return spec


def _renamed(fields: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields with new names. `names`: the new name of each field that gets another."""
    return {names.get(name, name): value for name, value in fields.items()}


def _job(recorded: dict[str, Any]) -> Config | Program:
    if "argv" in recorded:
        return _read(Program, recorded)
    from podrun.runtime.config import Config  # slow import that user programs do not need

    return Config.model_validate(recorded)


def _read(kind: type[T], recorded: dict[str, Any], **names: type) -> T:
    """Return the dataclass `kind` with the recorded values. `names`: annotated types that this module does not import.

    Raises TypeError if the values do not fit.
    """
    import dacite  # only where a recorded spec is read

    values = {key: _tuples(value) for key, value in recorded.items()}
    config = dacite.Config(type_hooks={Path: Path}, strict=True, forward_references=names)
    try:
        return dacite.from_dict(kind, values, config)
    except dacite.DaciteError as error:
        raise TypeError(str(error)) from None


def _tuples(value: Any) -> Any:
    """Return a JSON value with lists replaced by tuples."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Convert a value that JSON lacks: the fallback of the JSON encoder."""
    return os.fspath(value) if isinstance(value, Path) else value.model_dump(mode="json")
