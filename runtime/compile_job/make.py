"""Compile a job for the devices of a pod, and keep its executables with a list of them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from ..config import Config
from ..contract import UserError
from ..data.pipeline import evaluation_shapes, step_shapes
from ..devices import Devices
from ..disk_cache import DiskCache, UntrustedError
from ..executable_list import ExecutableList, Made, StoredExecutable, compiled_beside
from ..executables.executable import compile_anew, pack
from ..executables.key import built_for, executable_key
from ..models.attention import resolve
from ..optim import make_optimizer
from ..parallel import make_strategy
from ..parallel.base import Strategy
from ..storage.bucket_data import load_data
from ..storage.bucket_model import with_published
from ..tasks import make_task

_LIMIT = 4 << 30
"""Bytes of all executables that are kept on this machine; the ones not used for longest are removed."""
_TOO_MUCH = re.compile(r"RESOURCE_EXHAUSTED|Ran out of memory|out of memory", re.IGNORECASE)


@dataclass(frozen=True)
class Job:
    """The job to compile, and where to keep the executables."""

    config: Config
    slice: str
    path: Path
    """The list of the executables."""


class Compiler:
    """Compiles a job for the devices of a pod.

    Args:
        job: the job.
        pod: the devices; None: the devices of all processes of this process's pod.

    Raises:
        UserError: as in training; or the strategy has no program of the whole pod.
    """

    def __init__(self, job: Job, pod: Devices | None = None) -> None:
        config, _ = resolve(with_published(job.config), pod or Devices.here())
        data = load_data(config)
        task = make_task(config, data, pod)
        optimizer, schedule = make_optimizer(config, config.total_steps(data.train.size), task.stacked)
        self._strategy: Strategy = make_strategy(config, task, optimizer, schedule, pod)
        if not self._strategy.is_one_program:
            raise UserError(
                f"parallel: {config.parallel.name} has no program of the whole pod: every process compiles its own at the "
                "start. Only programs of the whole pod can be compiled before"
            )
        self._job = job
        self._pod = self._strategy.pod
        self._built_for = built_for(self._pod)
        self._store = compiled_beside(job.path, _LIMIT)
        parts = self._strategy.shares
        batch = step_shapes(data.train, config.batch_size, parts * config.accumulate)
        self._batch = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
        evaluation = evaluation_shapes(data.validation, config.batch_size, parts)
        self._evaluation = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in evaluation.items()}

    def of_this_process(self) -> list[Made]:
        """Compile the program of the initial state on CPUs, which each process compiles for its first device."""
        if not (self._pod.is_cpu and self._strategy.initial.is_one_program):
            return []
        lowered = self._strategy.initial.lowered()
        return self._make("initialization", lowered, self._pod.local[0].id)

    def of_the_pod(self) -> list[Made]:
        """Compile the programs of all devices.

        Executables that call functions of their process cannot be kept, and are left out.

        For GPUs, only the initialization is compiled. XLA chooses the kernels of a GPU by measuring them there: a step that
        was compiled without one took 4.8 times as long on an H200.
        """
        programs = self._strategy.lowered_programs(self._batch, self._evaluation)
        if self._pod.platform == "gpu" and not self._pod.are_here:
            programs = {"initialization": programs["initialization"]}
        return [made for name, lowered in programs.items() for made in self._make(name, lowered)]

    def write_list(self, made: Sequence[Made]) -> None:
        """Write the list of the executables. Raises UserError if that fails."""
        executables = tuple(one.executable for one in made)
        try:
            ExecutableList(self._job.slice, self._built_for, executables).write(self._job.path)
        except OSError as error:
            raise _cannot_keep(self._job.path, error) from None

    def _make(self, name: str, lowered: jax.stages.Lowered, device: int | None = None) -> list[Made]:
        """Compile a program and store it, unless it is stored already.

        Returns the stored executable, or an empty list if it cannot be stored.
        """
        key = executable_key(lowered, self._built_for, device)
        if (size := _size_of(self._store, key)) is not None:
            return [Made(StoredExecutable(name, key, size, 0.0), False)]
        began = time.monotonic()
        try:
            compiled = compile_anew(lowered)
        except Exception as error:  # JaxRuntimeError, which older versions call XlaRuntimeError
            if not _TOO_MUCH.search(str(error)):
                raise
            raise UserError(
                f"the {name} does not fit {self._job.slice}; `podrun inspect` with the same job says by how much, and names "
                "the largest buffers"
            ) from None
        seconds = time.monotonic() - began
        packed = pack(compiled)
        if packed is None:
            return []
        try:
            self._store.store(key, packed)
        except OSError as error:
            raise _cannot_keep(self._job.path, error) from None
        return [Made(StoredExecutable(name, key, len(packed), round(seconds, 2)), True)]


def _size_of(store: DiskCache, key: str) -> int | None:
    """Return the size of a stored executable; None if there is none that can be trusted."""
    try:
        return len(store.load(key))
    except (UntrustedError, OSError):
        return None


def _cannot_keep(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot keep the compiled programs in {path.parent}: {error.strerror or error}; make room there, or set PODRUN_HOME "
        "to another folder"
    )
