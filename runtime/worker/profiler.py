"""Trace some steps of a run that goes on, when `podrun profile` asks for it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax

from ..contract import EventKind, profile_folder, profile_order
from .progress import Reporter

_LOOK = 0.5  # seconds between two looks for an order: one costs a few microseconds
_MOST = 4096  # bytes of an order


@dataclass
class _Trace:
    """A trace that is being made, or that has been ordered."""

    id: str
    steps: int
    folder: Path
    first: int = 0
    last: int = 0


class Profiler:
    """Starts and ends a trace of this process between its steps, which need nothing of the other processes for it.

    Args:
        directory: the process's folder on the host, in which `podrun profile` leaves its order; the trace goes there.
        complete: waits for the steps in flight, without a collective: other processes do not wait at that place.
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
        """Start a trace with this step, or end one before it, if it is time."""
        if (trace := self._trace) is not None:
            if step >= trace.first + trace.steps or not self._order.exists():
                self.end()
            else:
                trace.last = step
        elif (now := time.monotonic()) >= self._due:
            self._due = now + _LOOK
            if self._order.exists():
                self._start(step)

    def end(self) -> None:
        """End the trace, if there is one. One that nobody waits for any more is removed."""
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
        options.python_tracer_level = 0  # each call of Python would be an event: the trace large, the steps slow
        try:
            trace.folder.mkdir(mode=0o700)
            jax.profiler.start_trace(str(trace.folder), profiler_options=options)
        except (OSError, RuntimeError) as error:
            self._fail(trace, error)
            return
        self._trace = trace
        self._report(trace, "begun")

    def _ordered(self) -> _Trace | None:
        """Return what the order says; None if it is damaged."""
        try:
            with self._order.open("rb") as file:
                order = json.loads(file.read(_MOST))
            name, steps = str(order["id"]), int(order["steps"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return _Trace(name, steps, self._directory / profile_folder(self._process, name)) if name.isalnum() else None

    def _fail(self, trace: _Trace, error: Exception) -> None:
        """Give back the disk space first: the report needs some."""
        shutil.rmtree(trace.folder, ignore_errors=True)
        self._order.unlink(missing_ok=True)
        self._report(trace, "failed", str(error).partition("\n")[0])

    def _report(self, trace: _Trace, state: str, error: str = "") -> None:
        fields = {"id": trace.id, "state": state, "step": trace.first, "last": trace.last, "error": error}
        self._reporter.event(EventKind.PROFILE, **fields)
