"""The session of this process: its place in the pod, its workdir, its metrics, and requests to stop."""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from podrun.runtime.checkpoint.messages import connect
from podrun.runtime.checkpoint.numbered import steps_in
from podrun.runtime.checkpoint.program import FirstState
from podrun.runtime.config.sections import Log
from podrun.runtime.contract import ENV_COORDINATOR, ENV_WORKDIR, Phase, Workdir, WorkerEnv
from podrun.runtime.distributed import agree, gather, initialize
from podrun.runtime.events import FIELDS, EvalEvent, EventKind, SampleEvent
from podrun.runtime.measure.samples import is_too_large, sample_of
from podrun.runtime.measure.tracker import Ending
from podrun.runtime.measure.writers import Writer, make_writers
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


def init(
    workdir: str | os.PathLike[str] | None = None,
    *,
    show: Sequence[str] = (),
    tensorboard: bool = True,
    wandb: str | None = None,
    tracker: Any = None,
) -> Process:
    """Join the pod if podrun started this process; otherwise this process is a pod of its own.

    Call it before JAX computes anything. `steps`, `report` and `checkpoint` call it if the program has not.

    Args:
        workdir: folder of the results. By default the folder of `podrun --workdir`, or `runs/NAME-OF-THE-SCRIPT`.
        show: names of the metrics to show for each step, on the console, in `podrun status` and in `podrun ps`; by default
            the first four that are reported. The page of the run shows all metrics.
        tensorboard: also write metrics and samples for TensorBoard, to `tensorboard/` in the workdir.
        wandb: Weights & Biases project to report to as well; needs the wandb library.
        tracker: your connection to another experiment tracker: an object with the methods `start(config, run)`,
            `log(step, metrics)` and `end(status)`, which process 0 calls in a thread of their own (docs/plugins.md).

    Returns:
        This process's place in the pod.

    Raises:
        UserError: JAX sees other devices than the slice has.
        ValueError: `init` was called before with another workdir.
    """
    if isinstance(show, str):
        raise TypeError(f"podrun.init: show is {show!r}, expected names of metrics: show=[{show!r}]")
    session = current(workdir)
    if show:  # a later call without arguments, such as `podrun.init().leads`, changes nothing
        session.metrics.shown = tuple(show)
    if wandb is not None or not tensorboard:
        session.log = Log(tensorboard=tensorboard, wandb=wandb)
    if tracker is not None:
        session.tracker = tracker
    if workdir is not None and session.workdir.path != Path(workdir).expanduser().absolute():
        raise ValueError(f"the workdir is {session.workdir.path} already")
    return Process(session.env.process_id, session.env.num_processes, session.workdir.path)


def report(
    step: int,
    metrics: Mapping[str, Any] | None = None,
    *,
    kind: str | None = None,
    sample: Mapping[str, Any] | None = None,
    **named: Any,
) -> None:
    """Report metrics of a step: to the console, `podrun status`, the page of the run, TensorBoard, and metrics.jsonl.

    Call it on all processes, with the same numbers, as often as you like. In a loop over `steps`, the numbers are read
    after the next step is dispatched, so that the devices do not wait.

    Args:
        step: number of the step.
        metrics: numbers by name, for names that are not valid in Python, such as `val/f1`. Metrics whose names begin alike
            are shown together.
        kind: `train` for metrics of training; `eval` for metrics of an evaluation, which the charts show as dots; or the name
            of another set that was evaluated, such as `test`: its metrics are then named `test/NAME`. By default `eval` if
            all names begin with `val/`, `valid/`, `validation/`, `eval/` or `test/`, otherwise `train`.
        sample: what to show on the page of the run, by name: text, a list of rows, an image (uint8 or float from 0 to 1,
            [height, width] or [height, width, channels]), or an array of numbers of one dimension, which is shown as a
            histogram.
        **named: further metrics.

    Raises:
        TypeError: a metric is not a number, a sample has none of these forms, or `step` is not an integer.
        ValueError: a metric has the name of a field of podrun's records, such as `time`, or one that is too long or cannot
            be printed.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f"podrun.report: metrics is {type(metrics).__name__}, expected numbers by name: podrun.report(step, loss=loss)"
        )
    if sample is not None and not isinstance(sample, Mapping):
        raise TypeError(
            f"podrun.report: sample is {type(sample).__name__}, expected samples by name: sample={{'text': ...}}"
        )
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"podrun.report: step is {step!r}, expected a whole number") from None
    if abs(number) > _LAST:
        raise ValueError(f"podrun.report: step is {number}, expected at most {_LAST}")
    numbers = {**(metrics or {}), **named}
    if kind is None:
        evaluated = bool(numbers) and all(str(name).startswith(_EVALUATED) for name in numbers)
        kind = "eval" if evaluated else "train"
    current().metrics.report(number, numbers, kind, sample or {})


def is_stopping() -> bool:
    """Return whether the run was asked to stop, by SIGTERM, Ctrl-C or `podrun stop`. If so, save and leave the loop.

    All processes of a pod get True at the same call, so all must make the same calls. `steps` does this itself.
    """
    return current().is_stopping()


class _Reported(NamedTuple):
    """The arguments of one call of `report`."""

    step: int
    kind: str
    metrics: dict[str, object]


_EVALUATED = ("val/", "valid/", "validation/", "eval/", "test/")
"""Beginnings of the names of metrics that belong to an evaluation."""
_SHOWN = 4
"""Metrics on a line of the console, unless the program names them."""
_LAST = (1 << 63) - 1
"""The largest step that TensorBoard's files have room for."""
_LONGEST = 120
"""Maximum length of a metric's name, in characters."""
_SENT = 64 << 20
"""Bytes of samples that are sent to the launcher; further ones are only in the workdir."""


class _Samples:
    """The samples that the program reports: they are written, and sent to the launcher until there are too many."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._sent = 0
        """Bytes of samples that were sent, or would have been."""
        self._too_large: set[str] = set()
        """Names of samples that were too large. The user is told once for each name."""

    def write(self, writers: Sequence[Writer], step: int, name: str, value: Any) -> None:
        """Write a sample to its file and send it. Raises TypeError for a value that `sample_of` refuses."""
        sample = sample_of(name, value)
        if reason := is_too_large(sample):
            if name not in self._too_large:
                self._too_large.add(name)
                self._reporter.note(f"sample {name} of step {step} is left out: {reason}")
            return
        try:
            for writer in writers:
                writer.sample(step, sample)
        except (OSError, ValueError, OverflowError) as error:  # something to look at must not end the training
            self._reporter.note(f"sample {name} of step {step} is left out: {error}")
            return
        before, self._sent = self._sent, self._sent + len(sample.content)
        if self._sent <= _SENT:
            event = {"event": EventKind.SAMPLE, "step": step, **sample._asdict()}
            self._reporter.event(cast(SampleEvent, event))
        elif before <= _SENT:
            self._reporter.note(
                f"{_SENT >> 20} MB of samples were sent to the page of the run; further ones are only in the workdir"
            )


class ReportedMetrics:
    """The metrics that the program reports, until their numbers are read and written.

    Args:
        open_writers: called with a step; opens metrics.jsonl and the other outputs, to continue after that step. None if
            another process writes them.
        reporter: gets the numbers as progress.
        saved: returns the step of the newest checkpoint; 0 if there is none.
    """

    def __init__(
        self, open_writers: Callable[[int], list[Writer]] | None, reporter: Reporter, saved: Callable[[], int]
    ) -> None:
        self._open_writers = open_writers
        self._saved = saved
        self._reporter = reporter
        self._is_open = False
        self._resumed: int | None = None
        self._writers: list[Writer] = []
        self._unread: list[_Reported] = []
        self._samples = _Samples(reporter)
        self.shown: tuple[str, ...] = ()
        """Names of the metrics on a line of the console; empty: the first that are reported."""
        self.total: int | None = None
        """Number of steps in all; None before `steps` is called."""
        self.defers = False
        """True in a loop over `steps`, which calls `flush` when the reported numbers may be read."""
        self.last_step = 0
        """The last step that was reported."""
        self.is_stopped = False
        """True if the run was asked to stop."""
        self.watched: str | None = None
        """A metric that also makes an evaluation of a report of training, if its name has a slash, as `val/loss`."""
        self._evaluations: dict[int, dict[str, float]] = {}

    def resume(self, step: int) -> None:
        """Remove the metrics of steps after `step`, which will be reported again."""
        if self._is_open and step == self._resumed:  # opened by an evaluation before training
            return
        self._resumed = step
        self._unread.clear()
        self._close()
        self._writers = self._open_writers(step) if self._open_writers else []
        if not self._is_open:
            atexit.register(self._close)
        self._is_open = True

    def _close(self) -> None:
        # Python sets `last_value` for an error that ends the program.
        status: Ending = "failed" if hasattr(sys, "last_value") else "stopped" if self.is_stopped else "done"
        for writer in self._writers:
            writer.close(status)
        self._writers = []

    def report(self, step: int, metrics: Mapping[str, object], kind: str, samples: Mapping[str, Any]) -> None:
        for name in metrics:
            _check_name(name)
        if not kind or not isinstance(kind, str) or "/" in kind:
            raise ValueError(
                f"podrun.report: kind is {kind!r}, expected train, eval or the name of a set, without a slash"
            )
        if not self._is_open:
            self.resume(step - 1 if step > 0 else self._saved())  # an evaluation before training is no new beginning
        if metrics or not samples:
            self._unread.append(_Reported(step, kind, {name: _held(value) for name, value in metrics.items()}))
            self.last_step = max(self.last_step, step if kind == "train" else 0)
        if not self.defers:
            self.flush()
        if self._open_writers is not None:  # otherwise another process writes
            for name, value in samples.items():
                self._samples.write(self._writers, step, str(name), value)

    def take_evaluations(self) -> dict[int, dict[str, float]]:
        """Return the metrics of the evaluations whose numbers were read since the last call, by step."""
        taken, self._evaluations = self._evaluations, {}
        return taken

    def flush(self, before: int | None = None) -> None:
        """Read the numbers of the reported metrics and write them. With `before`: only the numbers of earlier steps."""
        while self._unread and (before is None or self._unread[0].step < before):
            step, kind, metrics = self._unread.pop(0)
            numbers = {name: _number(name, value) for name, value in metrics.items()}
            if kind == "train":
                self._write(step, kind, numbers)
                if self.watched in numbers and "/" in self.watched:
                    self._keep_evaluation(step, numbers)
                self._reporter.shown = self.shown or tuple(numbers)[:_SHOWN] or self._reporter.shown
                self._reporter.progress(step, self.total, numbers)
            else:
                if kind != "eval":
                    numbers = {f"{kind}/{name}": value for name, value in numbers.items()}
                self._write(step, "eval", numbers)
                self._keep_evaluation(step, numbers)
                if self._open_writers is not None:
                    self._reporter.event(cast(EvalEvent, {"event": EventKind.EVAL, "step": step, **numbers}))

    def _keep_evaluation(self, step: int, numbers: dict[str, float]) -> None:
        if self.defers:
            self._evaluations.setdefault(step, {}).update(numbers)

    def _write(self, step: int, kind: str, numbers: dict[str, float]) -> None:
        for writer in self._writers:
            writer.write(step, kind, numbers)


class Session:
    """The session of this process, which `current` returns: environment, workdir, reporter, metrics and stop requests."""

    def __init__(self, workdir: Path | None) -> None:
        explain_mistakes()
        self.in_pod = ENV_COORDINATOR in os.environ
        self.env = WorkerEnv.from_env() if self.in_pod else _alone()
        chosen = workdir or Path(os.environ.get(ENV_WORKDIR) or Path("runs", _script()))
        self.workdir = Workdir(chosen.expanduser().absolute())
        path = self.env.events_path if self.in_pod else None
        self.reporter = Reporter(path, leads=self.env.process_id == 0, processes=self.env.num_processes)
        self.reporter.is_program = True
        self.metrics = ReportedMetrics(
            self._open_writers if self.env.process_id == 0 else None,
            self.reporter,
            lambda: max(steps_in(self.workdir.checkpoints) if self.workdir.checkpoints.is_dir() else (), default=0),
        )
        self.log = Log()
        self.first_states: dict[Path, FirstState] = {}
        """Form of the first state that was saved or restored without `steps`, by the folder of its checkpoints."""
        self.tracker: Any = None
        """The tracker that the program gave to `init`."""
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
            self._tell_workdir()
            atexit.register(self._tell_workdir)

    def _tell_workdir(self) -> None:
        """Print where the results are; called when the workdir is claimed, and again when the program exits."""
        self.reporter.note(f"metrics and checkpoints are in {self.workdir.path}")

    @cached_property
    def storage(self) -> Storage:
        """Claim the workdir, and return its storage. The first use must be on all processes. Raises as `claim` does."""
        self.claim()
        storage = self.storage_of(self.workdir.path)
        if self.env.process_id == 0 and (summary := storage.summary(self.workdir.path)):
            self.reporter.note(summary, one_disk=storage.is_one_disk)
        return storage

    def storage_of(self, folder: Path) -> Storage:
        """Find out whether the processes share a folder, and return its storage. Called on all processes.

        Process 0 creates the folder. A folder that process 0 cannot write to counts as shared, because checkpoints can be
        read from it.
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
        storage = make_storage(self.env, agree(token, b""))
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
        """Treat SIGTERM, and Ctrl-C without a pod, as a request to stop from now on. A process in a pod always does."""
        if self._stop is None:
            self._stop = StopRequest() if self.in_pod else LocalStop()

    def stop_listening(self) -> None:
        """Restore the signal handlers in a process without a pod."""
        if isinstance(self._stop, LocalStop):
            self._stop.close()
            self._stop = None

    def is_stopping(self) -> bool:
        self.listen()
        assert self._stop is not None
        self._stopping = self.metrics.is_stopped = self._stop.reached() or self._stopping
        return self._stopping

    def _open_writers(self, resumed_from: int) -> list[Writer]:
        self.claim()
        config = {"program": " ".join(sys.argv)}
        return make_writers(self.log, self.workdir, resumed_from, self.reporter.note, config, self.tracker)


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


def _check_name(name: Any) -> None:
    """Raise an error for a metric whose name would take the place of a field."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"podrun.report: a metric is named {name!r}, expected a text")
    if len(name) > _LONGEST or not name.isprintable():
        short = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
        raise ValueError(
            f"podrun.report: a metric is named {short!r}; expected at most {_LONGEST} printable characters"
        )
    if name in FIELDS:
        raise ValueError(
            f"podrun.report: a metric is named {name}, which is a field of podrun's records; give it another name, such as "
            f"my_{name}"
        )


def _held(value: Any) -> Any:
    """Return a copy of a numpy array or torch tensor, which may change before it is read; other values as they are."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.detach().clone() if type(value).__module__ == "torch" and hasattr(value, "clone") else value


def _number(name: str, value: Any) -> float:
    try:
        array = np.asarray(value)
    except RuntimeError as error:
        if "deleted" not in str(error):
            raise
        raise RuntimeError(
            f"podrun.report: {name} was given to a program that may overwrite it (donate_argnums) before its number was "
            f"read; report a copy: {name}.copy()"
        ) from None
    if array.size != 1 or (array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16"):
        raise TypeError(f"podrun.report: {name} is not a number, but {array.dtype}[{','.join(map(str, array.shape))}]")
    return float(array.reshape(()))
