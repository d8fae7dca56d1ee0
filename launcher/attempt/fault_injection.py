"""Inject the faults that only the launcher can inject, and record which were injected (`podrun --inject`)."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from podrun.runtime.events import EventKind, PhaseEvent, StepEvent
from podrun.runtime.injection import LINK_DOWN, PHASE, SECONDS, SIGNALS, STEP, Injection, parse_checked

from ..rundir.events import Event
from ..transport.base import Transport
from ..transport.faulty_transport import FaultyTransport
from .observers import Observer
from .outcome import Outcome

_SOMEBODY = re.compile(r" \((out of memory, or )?killed by somebody[^()]*\)")


class FaultInjection:
    """An observer that injects the faults of a run."""

    def __init__(
        self, injections: Sequence[str], observer: Observer, transport: Transport, struck: Collection[str] = ()
    ) -> None:
        """Begin with the faults that were not injected yet.

        Args:
            injections: all faults of the run, as the user typed them.
            observer: gets an event for each injected fault; it need not include this object.
            transport: the transport whose connections can be cut.
            struck: texts of the faults that were injected in earlier attempts.
        """
        self._left = {
            text: injection for text in injections if text not in struck for injection in parse_checked([text])
        }
        self._observer = observer
        self.transport = FaultyTransport(transport)
        self._attempt = 0
        self._struck_now: dict[int, str] = {}  # faults of this attempt by the process that was struck
        self._running: dict[int, int] = {}  # pid by process
        self._timers: list[threading.Timer] = []
        self._lock = threading.Lock()

    @property
    def left(self) -> tuple[str, ...]:
        """Return the faults that were not injected yet."""
        return tuple(self._left)

    def event(self, event: Event) -> None:
        if event["event"] == EventKind.NOTE and "injected" in event:
            self._left.pop(event["injected"], None)
            if "process" in event:
                self._struck_now[event["process"]] = event["injected"]
        elif event["event"] == EventKind.HOST and event["phase"] == "started":
            self._started(event["process"], event["pid"])
        elif event["event"] == EventKind.EXIT:
            self._running.pop(event["process"], None)
        elif event["event"] in (EventKind.STEP, EventKind.PHASE):
            for injection in [i for i in self._left.values() if _is_due(i, event)]:
                self._strike(injection)

    @contextmanager
    def during(self, attempt: int) -> Iterator[None]:
        """Inject the faults of this attempt inside the `with` block, none after it."""
        self._attempt = attempt
        self._struck_now.clear()
        try:
            yield
        finally:
            self._running.clear()
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()

    def explain(self, outcome: Outcome) -> Outcome:
        """Return the outcome; if podrun killed the process that failed first, its cause says that podrun did it."""
        cause = outcome.cause
        if cause is None or cause.process not in self._struck_now:
            return outcome
        what = _SOMEBODY.sub(f" (by podrun: --inject {self._struck_now[cause.process]})", cause.what)
        return replace(outcome, cause=cause._replace(what=what))

    def _started(self, process: int, pid: int) -> None:
        self._running[process] = pid
        for injection in self._left.values():
            if injection.time == SECONDS and injection.process == process:
                timer = threading.Timer(float(injection.at), partial(self._strike, injection))
                timer.daemon = True
                timer.start()
                self._timers.append(timer)

    def _strike(self, injection: Injection) -> None:
        """Inject the fault, unless it was injected already or the process has ended."""
        assert injection.process is not None and injection.host is not None
        with self._lock:
            pid = self._running.get(injection.process)
            if pid is None or self._left.pop(str(injection), None) is None:
                return
            self._struck_now[injection.process] = str(injection)
        message = f"--inject: the fault strikes now (attempt {self._attempt}): {injection}"
        self._observer.event(
            {"event": EventKind.NOTE, "time": time.time(), "message": message, "injected": str(injection)}
        )
        if injection.kind == LINK_DOWN:
            cut = partial(self.transport.cut, injection.host, injection.parameter or 0.0)
            threading.Thread(target=cut, name="link-down", daemon=True).start()
        else:
            try:
                os.kill(pid, SIGNALS[injection.kind])
            except ProcessLookupError:
                pass


def _is_due(injection: Injection, event: StepEvent | PhaseEvent) -> bool:
    """Return True if a worker's event shows that the time has come to cut the connection to its host."""
    if injection.kind != LINK_DOWN or injection.process != event["process"]:
        return False
    if event["event"] == EventKind.STEP:
        return injection.time == STEP and event["step"] >= float(injection.at)
    return injection.time == PHASE and event["phase"] == injection.at
