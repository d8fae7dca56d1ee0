"""Profile some steps of a running job when `podrun profile` requests it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax

from ..contract import profile_folder, profile_order
from ..events import EventKind
from .progress import Reporter

_POLL = 0.5  # seconds between two checks for a request, each of which takes microseconds
_MOST = 4096  # most bytes of a request


@dataclass
class _Trace:
    """A profile trace that was requested or is being recorded."""

    id: str
    steps: int
    folder: Path
    first: int = 0
    last: int = 0


class Profiler:
    """Starts and ends traces of this process between its steps, independently of the other processes.

    Args:
        directory: this process's folder on its host, where `podrun profile` puts its request, and where the trace is written.
        process: number of this process.
        reporter: gets the events.
        complete: called to wait for the steps in flight. It must not use a collective: the other processes do not take part.
    """

    def __init__(self, directory: Path, process: int, reporter: Reporter, complete: Callable[[], object]) -> None:
        self._order = directory / profile_order(process)
        self._directory = directory
        self._process = process
        self._reporter = reporter
        self._complete = complete
        self._due = 0.0
        self._trace: _Trace | None = None

    def begin_step(self, step: int) -> None:
        """Start a trace if one was requested, or end a trace that has all its steps. Called before each step."""
        if (trace := self._trace) is not None:
            if step >= trace.first + trace.steps or not self._order.exists():
                self.end()
            else:
                trace.last = step
        elif (now := time.monotonic()) >= self._due:
            self._due = now + _POLL
            if self._order.exists():
                self._start(step)

    def end(self) -> None:
        """End the trace, if there is one. If its request was withdrawn, remove the trace."""
        trace, self._trace = self._trace, None
        if trace is None:
            return
        self._complete()
        try:
            jax.profiler.stop_trace()
        except (OSError, RuntimeError) as error:
            self._fail(trace, error)
            return
        if not self._order.exists():
            shutil.rmtree(trace.folder, ignore_errors=True)
            return
        self._order.unlink(missing_ok=True)
        self._report(trace, "done")

    def _start(self, step: int) -> None:
        trace = self._ordered()
        if trace is None:
            self._order.unlink(missing_ok=True)
            return
        trace.first = trace.last = step
        self._complete()
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # tracing every Python call makes traces large and steps slow
        try:
            trace.folder.mkdir(mode=0o700)
            jax.profiler.start_trace(str(trace.folder), profiler_options=options)
        except (OSError, RuntimeError) as error:
            self._fail(trace, error)
            return
        self._trace = trace
        self._report(trace, "begun")

    def _ordered(self) -> _Trace | None:
        """Read the request of a trace. Return None if it is damaged."""
        try:
            with self._order.open("rb") as file:
                order = json.loads(file.read(_MOST))
            name, steps = str(order["id"]), int(order["steps"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return _Trace(name, steps, self._directory / profile_folder(self._process, name)) if name.isalnum() else None

    def _fail(self, trace: _Trace, error: Exception) -> None:
        """Remove the trace, because the report may need its disk space, and report the failure."""
        shutil.rmtree(trace.folder, ignore_errors=True)
        self._order.unlink(missing_ok=True)
        self._report(trace, "failed", str(error).partition("\n")[0])

    def _report(self, trace: _Trace, state: str, error: str = "") -> None:
        self._reporter.event(
            {
                "event": EventKind.PROFILE,
                "id": trace.id,
                "state": state,
                "step": trace.first,
                "last": trace.last,
                "error": error,
            }
        )
