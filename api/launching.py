"""Launch runs from Python: from notebooks, scripts and tests."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from podrun.runtime.contract import Event, EventKind

_METRICS = {EventKind.STEP: "train", EventKind.EPOCH: "epoch", EventKind.EVAL: "eval"}
_NO_METRICS = {"event", "time", "host", "process", "steps", "elapsed", "seconds_left"}
_STOP = 180.0  # seconds; a save that has begun may take a minute


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
        overrides: values by their keys: {"steps": 200, "optimizer.learning_rate": 1e-3}.

    Raises:
        LaunchError: the run cannot be started; it says why as the command does.
        ValueError: not one of `train` and `program`.
    """
    if (train is None) != bool(program):
        raise ValueError("podrun.launch takes a train.yaml, or a program: one of both")
    if isinstance(program, str):
        raise ValueError(f"podrun.launch: program is a list of words: {shlex.split(program)}")
    options = {"--slice": slice, "--pod": pod, "--hosts": hosts, "--workdir": workdir}
    given = [f"{name}={os.fspath(value)}" for name, value in options.items() if value is not None]
    keys = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in (overrides or {}).items()
    ]
    job = [] if train is None else [os.fspath(train)]
    command = ["run", "--json", *given, *["--simulate"] * simulate, *job, *keys]
    return Run([*command, "--", *[os.fspath(word) for word in program]] if program else command)


class Run:
    """Run started by `launch`. As a context (`with podrun.launch(...) as run:`) it is stopped at the end."""

    run_id: str
    directory: Path
    """The run directory: events, logs, plan."""

    def __init__(self, arguments: list[str]) -> None:
        self._errors = tempfile.TemporaryFile()
        # A session of its own: Ctrl-C in a notebook ends the cell, not the run. When this Python is gone, nobody reads the
        # pipe, by which podrun notices, and ends the run.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "podrun", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        atexit.register(self._end_with_python)
        self._stopped = False
        first = self._read_start()
        if first is None:
            code = self._process.wait()
            raise LaunchError(self._text(), code)
        self.run_id = first["run_id"]
        self.directory = Path(first["logs"]).parent
        threading.Thread(target=self._drain, name=f"podrun {self.run_id}", daemon=True).start()

    def __repr__(self) -> str:
        code = self._process.poll()
        return f"<podrun {self.run_id}: {'running' if code is None else f'ended with code {code}'}>"

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

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
            code = self._process.wait(timeout)
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
            self._process.send_signal(signal.SIGTERM)

    def _end_with_python(self) -> None:
        """End a run that nobody has waited for, as the process ends."""
        self._stopped = True
        self._signal()

    def _read_start(self) -> Event | None:
        """Return the event that says where the run's record is; None if the run does not begin."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: Event = json.loads(line)
            if event["event"] == EventKind.START:
                return event
        return None

    def _drain(self) -> None:
        """Read what podrun prints, which is in the record as well, so that it does not wait."""
        assert self._process.stdout is not None
        while self._process.stdout.read(1 << 16):
            pass

    def _text(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return text.removeprefix("podrun: ") or f"podrun ended with code {self._process.returncode}"
