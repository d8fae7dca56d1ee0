"""The session of this process: its place in the pod, its workdir, its metrics, and requests to stop."""

from __future__ import annotations

import contextlib
import operator
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from podrun.runtime.checkpoint.messages import connect
from podrun.runtime.contract import ENV_COORDINATOR, ENV_WORKDIR, Phase, Workdir, WorkerEnv
from podrun.runtime.distributed import agree, gather, initialize
from podrun.runtime.measure.writers import JsonLines
from podrun.runtime.storage import make_storage
from podrun.runtime.storage.base import Storage
from podrun.runtime.storage.shared_folder import SHARED_FOLDER
from podrun.runtime.worker.fault_injection import inject_faults
from podrun.runtime.worker.mistakes import explain_mistakes
from podrun.runtime.worker.preempt import LocalStop, StopRequest, report_sigterm
from podrun.runtime.worker.progress import Reporter
from podrun.runtime.worker.workdir import claim


@dataclass(frozen=True)
class Process:
    """A process's place in the pod."""

    process_id: int
    num_processes: int
    workdir: Path
    """Folder of the run's results: checkpoints and metrics.jsonl."""

    @property
    def leads(self) -> bool:
        """Return whether this is process 0, which prints and writes for all."""
        return self.process_id == 0


def init(workdir: str | os.PathLike[str] | None = None) -> Process:
    """Join the pod if podrun started this process; otherwise this process is a pod of one.

    Call it before JAX computes anything. `steps`, `report` and `checkpoint` call it if the program has not.

    Args:
        workdir: folder of the results. By default that of `podrun --workdir`, or `runs/NAME-OF-THE-SCRIPT`.

    Returns:
        This process's place in the pod.

    Raises:
        UserError: JAX sees other devices than the slice has.
        ValueError: it was called before with another workdir.
    """
    session = current(workdir)
    if workdir is not None and session.workdir.path != Path(workdir).expanduser().absolute():
        raise ValueError(f"the workdir is {session.workdir.path} already")
    return Process(session.env.process_id, session.env.num_processes, session.workdir.path)


def report(step: int, **metrics: Any) -> None:
    """Report metrics of a step to `podrun status`, to the log, and to metrics.jsonl in the workdir.

    Call it on all processes, with the same numbers, as often as you like. In a loop over `steps`, the numbers are read after
    the next step is dispatched, so that the devices do not wait.

    Raises:
        TypeError: a metric is not a number, or `step` is not an integer.
    """
    current().metrics.report(operator.index(step), metrics)


def is_stopping() -> bool:
    """Return whether the run was asked to stop, by SIGTERM, Ctrl-C or `podrun stop`. Then save, and leave the loop.

    All processes of a pod get True at the same call, so all must make the same calls. `steps` does this itself.
    """
    return current().is_stopping()


class ReportedMetrics:
    """The metrics that the program reports, until their numbers are read and written.

    Args:
        open_file: opens metrics.jsonl, to continue after a step; None: another process writes it.
        reporter: gets the numbers as progress.
    """

    def __init__(self, open_file: Callable[[int], JsonLines] | None, reporter: Reporter) -> None:
        self._open_file = open_file
        self._reporter = reporter
        self._is_open = False
        self._file: JsonLines | None = None
        self._unread: list[tuple[int, dict[str, Any]]] = []
        self.total: int | None = None
        """Number of steps in all; None before `steps` is called."""
        self.defers = False
        """True in a loop over `steps`, which calls `flush` when the reported numbers may be read."""
        self.last_step = 0
        """The last step that was reported."""

    def resume(self, step: int) -> None:
        """Remove the metrics of steps after `step`, which will be reported again."""
        self._unread.clear()
        self._file = self._open_file(step) if self._open_file else None
        self._is_open = True

    def report(self, step: int, metrics: dict[str, Any]) -> None:
        if not self._is_open:
            self.resume(step - 1)
        self._unread.append((step, metrics))
        self.last_step = step
        if not self.defers:
            self.flush()

    def flush(self, before: int | None = None) -> None:
        """Take the reported metrics out and write them; with `before`, only those of earlier steps."""
        while self._unread and (before is None or self._unread[0][0] < before):
            step, metrics = self._unread.pop(0)
            numbers = {name: _number(name, value) for name, value in metrics.items()}
            if self._file is not None:
                self._file.write(step, "train", numbers)
            self._reporter.progress(step, self.total, numbers)


class Session:
    """The session of this process, which `current` returns: environment, workdir, reporter, metrics and stop requests."""

    def __init__(self, workdir: Path | None) -> None:
        explain_mistakes()
        self.in_pod = ENV_COORDINATOR in os.environ
        self.env = WorkerEnv.from_env() if self.in_pod else _alone()
        chosen = workdir or Path(os.environ.get(ENV_WORKDIR) or Path("runs", _script()))
        self.workdir = Workdir(chosen.expanduser().absolute())
        self.reporter = Reporter(self.env.events_path if self.in_pod else None, leads=self.env.process_id == 0)
        self.metrics = ReportedMetrics(self._open_metrics if self.env.process_id == 0 else None, self.reporter)
        self._claimed = False
        self._stop: StopRequest | LocalStop | None = None
        self._stopping = False
        if self.in_pod:
            inject_faults(self.env, self.workdir, self.reporter)
            self.reporter.phase(Phase.CONNECT)
            if not jax.distributed.is_initialized():
                initialize(self.env)
            report_sigterm(self.reporter)
            self.reporter.phase(Phase.SETUP)

    def claim(self) -> None:
        """Create and lock the workdir on process 0. Raises UserError if that fails or another run uses it."""
        if self.env.process_id == 0 and not self._claimed:
            claim(self.workdir, self.env, self.reporter)
            self._token.unlink()
            self._claimed = True

    @cached_property
    def storage(self) -> Storage:
        """Claim the workdir, and return its storage. The first use must be on all processes. Raises as `claim` does."""
        self.claim()
        storage = self.storage_of(self.workdir.path)
        if self.env.process_id == 0 and (summary := storage.summary(self.workdir.path)):
            self.reporter.note(summary)
        return storage

    def storage_of(self, folder: Path) -> Storage:
        """Find out whether the processes share a folder, and return its storage. Called on all processes.

        Process 0 creates the folder. One that process 0 cannot write to counts as shared: checkpoints can be read from it.
        """
        if not self.in_pod or self.env.num_processes == 1:
            return SHARED_FOLDER
        token = folder / self._token.name
        if self.env.process_id == 0:
            with contextlib.suppress(OSError):  # the folder is only read, on all hosts
                folder.mkdir(parents=True, exist_ok=True)
                token.touch()
        if not gather([token.exists()])[0, 0]:
            return SHARED_FOLDER
        storage = make_storage(self.env, agree(self.env, token, b""))
        if self.env.process_id == 0:
            token.unlink()
        if not storage.everyone_reads:
            connect()
        return storage

    @property
    def _token(self) -> Path:
        return self.workdir.token(self.env.run_id, self.env.attempt)

    # --- stop ---

    def listen(self) -> None:
        """Treat SIGTERM as a request to stop from now on. In a pod this is always so."""
        if self._stop is None:
            self._stop = StopRequest() if self.in_pod else LocalStop()

    def stop_listening(self) -> None:
        """Restore the handler of SIGTERM in a process without a pod."""
        if isinstance(self._stop, LocalStop):
            self._stop.close()
            self._stop = None

    def is_stopping(self) -> bool:
        self.listen()
        assert self._stop is not None
        self._stopping = self._stop.reached() or self._stopping
        return self._stopping

    def _open_metrics(self, resumed_from: int) -> JsonLines:
        self.claim()
        return JsonLines(self.workdir.metrics, resumed_from, self.reporter.note)


_current: Session | None = None


def current(workdir: str | os.PathLike[str] | None = None) -> Session:
    """Return the session, which is created at the first call."""
    global _current
    if _current is None:
        _current = Session(None if workdir is None else Path(workdir))
    return _current


def _alone() -> WorkerEnv:
    """Return the environment of a process that podrun did not start."""
    # The pid in place of the attempt makes the token's name unique.
    return WorkerEnv("alone", os.getpid(), "localhost", 0, 1, (), "", Path(os.devnull))


def _script() -> str:
    """Return the name of the program: `own` for own.py, `python` for a notebook or prompt."""
    return Path(sys.argv[0]).stem if sys.argv and sys.argv[0].endswith(".py") else "python"


def _number(name: str, value: Any) -> float:
    array = np.asarray(value)
    if array.size != 1 or (array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16"):
        raise TypeError(f"podrun.report: {name} is not a number, but {array.dtype}[{','.join(map(str, array.shape))}]")
    return float(array.reshape(()))
