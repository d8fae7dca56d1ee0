"""Launch runs from Python: from notebooks, scripts and tests."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from podrun.runtime.contract import ExitCode
from podrun.runtime.events import EventKind

if TYPE_CHECKING:
    from podrun.launcher.rundir.events import EndEvent, Event, StartEvent
    from podrun.launcher.rundir.runs import RunDirectory

_METRICS = {EventKind.STEP: "train", EventKind.EPOCH: "epoch", EventKind.EVAL: "eval"}
_NO_METRICS = {"event", "time", "host", "process", "steps", "elapsed", "seconds_left"}
_PODRUN = (sys.executable, "-m", "podrun")
_STOP = 180.0  # seconds; a save in progress may take a minute
_POLL = 0.2  # seconds
ONE_PLACE = (
    "slurm has the options of a job, such as slurm='partition=gpu,time=2:00:00', and excludes hosts and simulate"
)


class LaunchError(RuntimeError):
    """A run did not start, or it failed. The message is what podrun prints."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code
        """podrun's exit code."""


@overload
def launch(
    train: str | os.PathLike[str] | None = None,
    *,
    program: Sequence[str | os.PathLike[str]] = (),
    slice: str | None = None,
    pod: str | os.PathLike[str] | None = None,
    hosts: str | None = None,
    simulate: bool = False,
    slurm: None = None,
    workdir: str | os.PathLike[str] | None = None,
    name: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> Run: ...


@overload
def launch(
    train: str | os.PathLike[str] | None = None,
    *,
    program: Sequence[str | os.PathLike[str]] = (),
    slice: str | None = None,
    pod: str | os.PathLike[str] | None = None,
    slurm: str,
    workdir: str | os.PathLike[str] | None = None,
    name: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> SubmittedRun: ...


def launch(
    train: str | os.PathLike[str] | None = None,
    *,
    program: Sequence[str | os.PathLike[str]] = (),
    slice: str | None = None,
    pod: str | os.PathLike[str] | None = None,
    hosts: str | None = None,
    simulate: bool = False,
    slurm: str | None = None,
    workdir: str | os.PathLike[str] | None = None,
    name: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> Run | SubmittedRun:
    """Start a run, as the command `podrun` does, and return when it has begun; with `slurm`, when it is in the queue.

    The run ends with this Python process; a submitted one goes on.

    Args:
        train: path of a train.yaml.
        program: command line of a user program, in place of `train`.
        slice: name of a slice, such as `cpu-2x2`.
        pod: pod file.
        hosts: names of the hosts; or `local`, this machine with its own devices.
        simulate: simulate the pod on this machine.
        slurm: options of a SLURM job, as `--slurm` takes them: `partition=gpu,time=2:00:00`. The run is submitted.
        workdir: folder of the results.
        name: name of the run in `podrun ps`.
        overrides: values by key: {"steps": 200, "optimizer.learning_rate": 1e-3}. Text, numbers, paths, arrays, and lists
            and mappings of these.

    Raises:
        LaunchError: the run cannot be started or submitted; the message is that of the command.
        ValueError: neither or both of `train` and `program` are given, or `slurm` is empty or given with other hosts.
        TypeError: a value of `overrides` has another type.
        KeyboardInterrupt: Ctrl-C; the run has ended then, and a submitted one is taken out of the queue.
    """
    if (train is None) != bool(program):
        raise ValueError("podrun.launch takes either a train.yaml or a program")
    if isinstance(program, str):
        raise ValueError(f"podrun.launch: program is a list of words: {shlex.split(program)}")
    if slurm is not None and (not slurm or hosts is not None or simulate):
        raise ValueError(f"podrun.launch: {ONE_PLACE}")
    options = {
        "--slice": slice,
        "--pod": pod,
        "--hosts": hosts,
        "--slurm": slurm,
        "--workdir": workdir,
        "--name": name or None,
    }
    given = [f"{option}={os.fspath(value)}" for option, value in options.items() if value is not None]
    keys = [f"{key}={_typed(key, value)}" for key, value in (overrides or {}).items()]
    job = [] if train is None else [os.fspath(train)]
    command = ["run", "--json", *given, *["--simulate"] * simulate, *job, *keys]
    command += ["--", *[os.fspath(word) for word in program]] if program else []
    return Run(command) if slurm is None else _submit(command)


def _typed(key: str, value: Any) -> str:
    """Return a value as text for the command line. Raises TypeError."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        return value if isinstance(value, str) else json.dumps(value, default=_plain)
    except (TypeError, ValueError) as error:  # ValueError: the value contains itself
        raise TypeError(
            f"podrun.launch: overrides: {key} is {value!r}: {error}; give text, numbers, paths, arrays, or lists and "
            "mappings of them"
        ) from None


def _plain(value: Any) -> Any:
    """Convert a path to text, and arrays and numbers of numpy to Python's types. Raises TypeError for other values."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be typed on a command line")


class _Recorded:
    """The record of a run, which is the same wherever the run is supervised."""

    run_id: str
    directory: Path
    """The run directory: events, logs, plan."""

    @property
    def _record(self) -> RunDirectory:
        from podrun.launcher.rundir.runs import RunDirectory

        return RunDirectory(self.directory)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield all events from the first on, waiting for new ones until the run has ended."""
        from podrun.launcher.rundir.follow import follow

        for event in follow(self._record):
            if event is not None:
                yield {**event}

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics reported so far: {"step": 10, "kind": "train", "loss": ...}."""
        return [
            {"kind": _METRICS[event["event"]], **{k: v for k, v in event.items() if k not in _NO_METRICS}}
            for event in self._record.read_events()
            if event["event"] in (EventKind.STEP, EventKind.EPOCH, EventKind.EVAL) and event["process"] == 0
        ]


class Run(_Recorded):
    """A run that `launch` has started. As a context manager (`with podrun.launch(...) as run:`), it stops the run."""

    def __init__(self, arguments: list[str]) -> None:
        self._errors = tempfile.TemporaryFile()
        self._owner = os.getpid()
        self._stopped = False
        self._failure: OSError | None = None
        # Started in a thread, because Ctrl-C interrupts only the main thread: the process cannot be started but not noted.
        starter = threading.Thread(target=self._start, args=(arguments,), name="start podrun")
        try:
            starter.start()
            starter.join()
            if self._failure is not None:
                raise self._failure
            atexit.register(self._end_with_python)
            first = self._read_start()
            if first is None:
                code = self._process.wait()
                raise LaunchError(self._text(), code)
            self.run_id = first["run_id"]
            self.directory = Path(first["logs"]).parent
            self._drain_in_thread()
        except BaseException:  # including Ctrl-C: the caller has no reference to this run
            starter.join()
            if self in _runs:
                self._give_up()
            raise

    def _start(self, arguments: list[str]) -> None:
        """Start podrun, and record the process or the error."""
        # In a session of its own, so that Ctrl-C in a notebook ends the cell, not the run. When this Python process is gone,
        # the pipe has no reader; podrun notices that and ends the run.
        try:
            self._process = subprocess.Popen(
                [*_PODRUN, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._failure = error
        else:
            _runs.add(self)

    def __repr__(self) -> str:
        return f"<podrun {self.run_id}: {'running' if self.is_running else f'ended with code {self._code()}'}>"

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """True if the run is in progress. Valid in forked processes as well."""
        return self._process.poll() is None if os.getpid() == self._owner else self._is_supervised()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the run, and return podrun's exit code: 0, or another one after `stop`.

        Raises:
            LaunchError: the run failed; the last line of the message is the first cause.
            TimeoutError: the run has not ended after `timeout` seconds.
        """
        try:
            code = self._process.wait(timeout) if os.getpid() == self._owner else self._wait_elsewhere(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"podrun {self.run_id} has not ended after {timeout:g} s") from None
        if code and not self._stopped:
            raise LaunchError(self._text(), code)
        return code

    def stop(self, *, now: bool = False) -> int:
        """Stop the run, wait for its end, and return podrun's exit code.

        Args:
            now: stop without a checkpoint.

        Raises:
            TimeoutError: the run has not ended after 3 minutes.
        """
        self._stopped = self._stopped or self.is_running
        for _ in range(2 if now else 1):
            self._signal()
            if now and self.is_running:
                threading.Event().wait(0.2)  # two pending signals of the same kind count as one
        return self.wait(_STOP)

    def _signal(self) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self._process.pid, signal.SIGTERM)

    def _end_with_python(self) -> None:
        """Stop the run when the Python process that launched it exits."""
        if os.getpid() == self._owner:
            self._stopped = True
            self._signal()

    def _give_up(self) -> None:
        """Stop a run that failed to start or was interrupted, and wait for its end."""
        atexit.unregister(self._end_with_python)
        self._drain_in_thread()
        self._signal()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_POLL)
        self._signal()  # the second signal: without a checkpoint
        try:
            self._process.wait(_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()  # agents end when their launcher is gone
            self._process.wait()

    def _is_supervised(self) -> bool:
        """Return whether the run is in progress, judged by its run directory: a forked process cannot wait for podrun."""
        return self._record.supervisor() == self._process.pid

    def _wait_elsewhere(self, timeout: float | None) -> int:
        """Wait as `Popen.wait` does, in a forked process. Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._is_supervised():
            if timeout is not None and end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired("podrun", timeout)
            time.sleep(_POLL)
        return self._code()

    def _code(self) -> int:
        """Return the exit code of an ended run; a forked process reads it from the run directory."""
        if os.getpid() == self._owner:
            return self._process.wait()
        end = self._record.end()
        return int(end["code"]) if end else ExitCode.FAILED

    def _read_start(self) -> StartEvent | None:
        """Wait for the event that names the run directory, and return it; None if the run does not begin."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: Event = json.loads(line)
            if event["event"] == EventKind.START:
                return event
        return None

    def _drain_in_thread(self) -> None:
        """Read and discard podrun's output, so that podrun does not block. The run directory has the same output."""
        threading.Thread(target=self._drain, name=f"podrun {self._process.pid}", daemon=True).start()

    def _drain(self) -> None:
        assert self._process.stdout is not None
        while self._process.stdout.read(1 << 16):
            pass

    def close_pipe(self) -> None:
        """Close the pipe in a forked process.

        While any process has it open, podrun assumes that the launching program is alive.
        """
        nowhere = os.open(os.devnull, os.O_RDONLY)
        assert self._process.stdout is not None
        os.dup2(nowhere, self._process.stdout.fileno(), inheritable=False)
        os.close(nowhere)

    def _text(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        text = (
            os.pread(self._errors.fileno(), size, 0).decode(errors="replace").strip()
        )  # read without moving the offset, at which podrun writes
        return text.removeprefix("podrun: ") or f"podrun ended with code {self._code()}"


_runs: weakref.WeakSet[Run] = weakref.WeakSet()


def _close_pipes() -> None:
    for run in _runs:
        run.close_pipe()


os.register_at_fork(after_in_child=_close_pipes)


class SubmittedRun(_Recorded):
    """A run that was submitted to SLURM. It goes on when this Python process ends; `podrun ps` lists it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run_id = directory.name
        self._stopped = False

    def __repr__(self) -> str:
        end = self._end()
        state = "not ended" if end is None else f"ended with code {end['code']}"
        return f"<podrun {self.run_id}, SLURM job {self.job_id}: {state}>"

    @property
    def job_id(self) -> str | None:
        """The id of its SLURM job, which may change when the run goes on in another job."""
        return self._record.job()

    @property
    def is_running(self) -> bool:
        """True while the run waits in the queue or is in progress."""
        return self._end() is None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the run, and return podrun's exit code: 0, or another one after `stop`.

        Raises:
            LaunchError: the run failed, was cancelled, or the record of it is gone; the message says why.
            TimeoutError: the run has not ended after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (end := self._end()) is None:
            if not self.directory.is_dir():
                raise LaunchError(
                    f"{self.directory} is gone, so how the run has ended is unknown", ExitCode.UNAVAILABLE
                )
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"podrun {self.run_id} has not ended after {timeout:g} s")
            time.sleep(_POLL)
        if end["code"] and not self._stopped:
            raise LaunchError(end["message"], end["code"])
        return end["code"]

    def stop(self, *, now: bool = False) -> int:
        """Stop the run, or take it out of the queue, wait for its end, and return podrun's exit code.

        Args:
            now: stop without a checkpoint.

        Raises:
            LaunchError: SLURM does not answer.
            TimeoutError: the run has not ended after 3 minutes.
        """
        running = self.is_running
        done = subprocess.run(
            [*_PODRUN, "stop", *["--now"] * now, self.run_id],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,
        )
        if done.returncode == ExitCode.BAD_CONFIG:
            raise LaunchError(done.stderr.strip().removeprefix("podrun: "), done.returncode)
        self._stopped = self._stopped or running
        return self.wait(_STOP)

    def _end(self) -> EndEvent | None:
        """Return the event of the run's end; None if it goes on, perhaps in a job that was requeued."""
        from podrun.launcher.rundir.submitted import end_of, is_final, is_unfinished

        end = self._record.end()
        if end is not None and is_final(end, self._record):
            return end
        return None if is_unfinished(self._record) else end_of(self._record)


def _submit(arguments: list[str]) -> SubmittedRun:
    """Call podrun, which submits a run. Raises LaunchError; after Ctrl-C, once or twice, the run is stopped."""
    from podrun.launcher.run.signals import deferred_interrupt, one_interrupt

    with one_interrupt(), contextlib.ExitStack() as starting:
        starting.enter_context(deferred_interrupt())  # within Popen it would leave a submission that nobody waits for
        # In a session of its own, so that Ctrl-C does not end it between SLURM's answer and the record of it.
        with subprocess.Popen(
            [*_PODRUN, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                starting.close()
                output, errors = process.communicate()
            except BaseException:  # including Ctrl-C: the caller has no reference to this run
                output, errors = process.communicate()
                if process.returncode == 0:
                    SubmittedRun(Path(json.loads(output)["directory"])).stop(now=True)
                raise
    if process.returncode:
        raise LaunchError(errors.strip().removeprefix("podrun: "), process.returncode)
    if errors:
        print(errors, end="", file=sys.stderr, flush=True)  # warnings
    return SubmittedRun(Path(json.loads(output)["directory"]))
