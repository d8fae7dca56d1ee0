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
from typing import Any

from podrun.runtime.contract import Event, EventKind, ExitCode

_METRICS = {EventKind.STEP: "train", EventKind.EPOCH: "epoch", EventKind.EVAL: "eval"}
_NO_METRICS = {"event", "time", "host", "process", "steps", "elapsed", "seconds_left"}
_STOP = 180.0  # seconds; a save that has begun may take a minute
_LOOK = 0.2  # seconds between two looks at a run that another process has launched


class LaunchError(RuntimeError):
    """A run did not start, or failed. Its text is what podrun prints."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code
        """podrun's exit code."""


def launch(
    train: str | os.PathLike[str] | None = None,
    *,
    program: Sequence[str | os.PathLike[str]] = (),
    slice: str | None = None,
    pod: str | os.PathLike[str] | None = None,
    hosts: str | None = None,
    simulate: bool = False,
    workdir: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Run:
    """Start a run as the command `podrun` does, and return once it has begun. It ends with this Python.

    Args:
        train: path of a train.yaml.
        program: command line of a user program, instead of `train`.
        slice, pod, hosts, simulate, workdir: the options of the command.
        overrides: values by their keys: {"steps": 200, "optimizer.learning_rate": 1e-3}. Text, numbers, paths, arrays, and
            lists and mappings of them.

    Raises:
        LaunchError: the run cannot be started; it says why as the command does.
        ValueError: not one of `train` and `program`.
        TypeError: a value of `overrides` is of another kind.
        KeyboardInterrupt: Ctrl-C; nothing of the run is left then.
    """
    if (train is None) != bool(program):
        raise ValueError("podrun.launch takes a train.yaml, or a program: one of both")
    if isinstance(program, str):
        raise ValueError(f"podrun.launch: program is a list of words: {shlex.split(program)}")
    options = {"--slice": slice, "--pod": pod, "--hosts": hosts, "--workdir": workdir}
    given = [f"{name}={os.fspath(value)}" for name, value in options.items() if value is not None]
    keys = [f"{key}={_typed(key, value)}" for key, value in (overrides or {}).items()]
    job = [] if train is None else [os.fspath(train)]
    command = ["run", "--json", *given, *["--simulate"] * simulate, *job, *keys]
    return Run([*command, "--", *[os.fspath(word) for word in program]] if program else command)


def _typed(key: str, value: Any) -> str:
    """Return a value as it is typed on the command line. Raises TypeError."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        return value if isinstance(value, str) else json.dumps(value, default=_plain)
    except (TypeError, ValueError) as error:  # the latter: it contains itself
        raise TypeError(
            f"podrun.launch: overrides: {key} is {value!r}: {error}; give text, numbers, paths, arrays, or lists and "
            "mappings of them"
        ) from None


def _plain(value: Any) -> Any:
    """Return a path as text, an array or a number of numpy's as Python's own. Raises TypeError."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be typed on a command line")


class Run:
    """Run started by `launch`. As a context (`with podrun.launch(...) as run:`) it is stopped at the end."""

    run_id: str
    directory: Path
    """The run directory: events, logs, plan."""

    def __init__(self, arguments: list[str]) -> None:
        self._errors = tempfile.TemporaryFile()
        self._owner = os.getpid()
        self._stopped = False
        self._failure: OSError | None = None
        # Ctrl-C comes to the main thread alone, so that it never falls between the start of the process and its note.
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
        except BaseException:  # Ctrl-C, too: nobody holds this run
            starter.join()
            if self in _runs:
                self._give_up()
            raise

    def _start(self, arguments: list[str]) -> None:
        """Start podrun, and note it or why that failed."""
        # A session of its own: Ctrl-C in a notebook ends the cell, not the run. When this Python is gone, nobody reads the
        # pipe, by which podrun notices, and ends the run.
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "podrun", *arguments],
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
        """Whether the run goes on; in a forked process, too."""
        return self._process.poll() is None if os.getpid() == self._owner else self._is_supervised()

    def events(self) -> Iterator[Event]:
        """Yield all events from the first on, and each new one, until the run has ended."""
        from podrun.launcher.rundir.follow import follow
        from podrun.launcher.rundir.runs import RunDirectory

        for event in follow(RunDirectory(self.directory)):
            if event is not None:
                yield event

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics that this run has reported so far: {"step": 10, "kind": "train", "loss": ...}."""
        from podrun.launcher.rundir.runs import RunDirectory

        return [
            {"kind": _METRICS[EventKind(event["event"])], **{k: v for k, v in event.items() if k not in _NO_METRICS}}
            for event in RunDirectory(self.directory).read_events()
            if event["event"] in _METRICS and event["process"] == 0
        ]

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the run, and return podrun's exit code: 0, or that of a run that `stop` has ended.

        Raises:
            LaunchError: the run failed; its last line is the first cause.
            TimeoutError: it goes on after `timeout` seconds.
        """
        try:
            code = self._process.wait(timeout) if os.getpid() == self._owner else self._wait_elsewhere(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"podrun {self.run_id} goes on after {timeout:g} s") from None
        if code and not self._stopped:
            raise LaunchError(self._text(), code)
        return code

    def stop(self, *, now: bool = False) -> int:
        """End the run, with a checkpoint unless `now`, and return podrun's exit code, when nothing of it is left.

        Raises TimeoutError if it goes on.
        """
        self._stopped = self._stopped or self.is_running
        for _ in range(2 if now else 1):
            self._signal()
            if now and self.is_running:
                threading.Event().wait(0.2)  # two signals of a kind that are pending at once are one
        return self.wait(_STOP)

    def _signal(self) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self._process.pid, signal.SIGTERM)

    def _end_with_python(self) -> None:
        """End a run that nobody has waited for, as the process that launched it ends."""
        if os.getpid() == self._owner:
            self._stopped = True
            self._signal()

    def _give_up(self) -> None:
        """End a run that has not begun, or whose start nobody has seen, and wait for its end."""
        atexit.unregister(self._end_with_python)
        self._drain_in_thread()
        self._signal()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LOOK)
        self._signal()  # at once, without a checkpoint
        try:
            self._process.wait(_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its agents end without it
            self._process.wait()

    def _is_supervised(self) -> bool:
        """Return whether the record says that the run goes on, for a process that cannot wait for podrun's."""
        from podrun.launcher.rundir.runs import RunDirectory

        return RunDirectory(self.directory).supervisor() == self._process.pid

    def _wait_elsewhere(self, timeout: float | None) -> int:
        """Wait as `Popen.wait` does, in a forked process. Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._is_supervised():
            if timeout is not None and end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired("podrun", timeout)
            time.sleep(_LOOK)
        return self._code()

    def _code(self) -> int:
        """Return the exit code of a run that has ended; a forked process reads it in the record."""
        if os.getpid() == self._owner:
            return self._process.wait()
        from podrun.launcher.rundir.runs import RunDirectory

        end = RunDirectory(self.directory).end()
        return int(end["code"]) if end else ExitCode.FAILED

    def _read_start(self) -> Event | None:
        """Return the event that says where the run's record is; None if the run does not begin."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: Event = json.loads(line)
            if event["event"] == EventKind.START:
                return event
        return None

    def _drain_in_thread(self) -> None:
        """Read what podrun prints, which is in the record as well, so that it does not wait."""
        threading.Thread(target=self._drain, name=f"podrun {self._process.pid}", daemon=True).start()

    def _drain(self) -> None:
        assert self._process.stdout is not None
        while self._process.stdout.read(1 << 16):
            pass

    def let_go(self) -> None:
        """Let a forked process not hold the pipe, by whose end podrun notices that this Python is gone."""
        nowhere = os.open(os.devnull, os.O_RDONLY)
        assert self._process.stdout is not None
        os.dup2(nowhere, self._process.stdout.fileno(), inheritable=False)
        os.close(nowhere)

    def _text(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), size, 0).decode(errors="replace").strip()  # podrun writes at its end
        return text.removeprefix("podrun: ") or f"podrun ended with code {self._code()}"


_runs: weakref.WeakSet[Run] = weakref.WeakSet()


def _let_go() -> None:
    for run in _runs:
        run.let_go()


os.register_at_fork(after_in_child=_let_go)
