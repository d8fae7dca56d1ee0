"""Show the events of a run as plain lines or JSON lines. `live_console.py` has the view for terminals."""

from __future__ import annotations

import json
import sys
import time
from pathlib import PurePath
from typing import Protocol, TextIO

from podrun.runtime.config.bucket_url import url
from podrun.runtime.contract import Phase
from podrun.runtime.events import EventKind, StepEvent
from podrun.runtime.lines import PHASES, describe_step, milestone, step_line
from podrun.runtime.wording import counted

from ..pod.traits import location, reached
from ..rundir.events import Event, StartEvent
from ..rundir.lateness import describe_late
from ..rundir.run_state import RunState
from .phases import phase_words

_QUIET = 10.0  # seconds between lines of steps that have nothing but their numbers


def headline(start: StartEvent) -> str:
    """Return the first lines of a run: its size, platform and paths."""
    hosts = counted(len(start["hosts"]), "host")
    kind = reached(start["transport"])
    devices = counted(start["devices"], "device")
    lines = [f"podrun {start['run_id']}: {start['slice']} = {hosts} x {devices}, {kind}"]
    workdir = url(PurePath(start["workdir"])) or location(
        start["workdir"], start["transport"], next(iter(start["hosts"]), "")
    )
    lines += [f"  program {start['program']}"] if start["program"] else [f"  workdir {workdir}"]
    if start.get("python"):  # the full path, because `python` may have been found in PATH
        lines.append(f"  python  {start['python']}")
    lines.append(f"  logs    {start['logs']}")
    count = sum(map(len, start["hosts"].values()))
    if start["program"] and count > 1:
        lines.append(f"  shown   what process 0 prints; `podrun logs -f {start['run_id']}` shows all {count} processes")
    return "\n".join(lines)


def notable_line(event: Event) -> str | None:
    """Return the line of an event that every view for people shows; None if the event has none."""
    match event["event"]:
        case EventKind.START:
            return headline(event) if event["attempt"] == 0 else None
        case EventKind.RESTART:
            return event["message"]
        case EventKind.LATE:
            return describe_late(event) if event["behind"] else None
        case EventKind.HOST | EventKind.EXIT | EventKind.USAGE | EventKind.END:
            return None
    return milestone(event)


def is_in_output(state: RunState, event: Event) -> bool:
    """Return True if the event's line is already shown as output of the user program."""
    return state.is_program and event.get("process") == 0 and event["event"] not in (EventKind.HOST, EventKind.EXIT)


class Console(Protocol):
    """A view of a run: receives its events and shows them."""

    piece: int
    """Maximum size of a piece of program output, in bytes; 0: the output is not shown."""
    is_terminal: bool
    """True if a person watches: old output may then be skipped."""

    def event(self, event: Event) -> None:
        """Show an event."""

    def say(self, text: str) -> None:
        """Show a text."""

    def output(self, text: str) -> None:
        """Show a piece of program output."""

    def stop(self) -> None:
        """Remove the live view at the end of an attempt."""


class NoConsole:
    """Console of a background supervisor: shows nothing, because the events are recorded."""

    piece = 0
    is_terminal = False

    def event(self, event: Event) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, flush=True)

    def output(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


class QuietConsole(NoConsole):
    """Shows nothing: for a command that prints its result as JSON. A failure is printed on stderr."""

    def say(self, text: str) -> None:
        pass


class JsonConsole:
    """Prints every event as a JSON line on stdout."""

    piece = 0
    is_terminal = False

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def event(self, event: Event) -> None:
        self._out.write(json.dumps(event) + "\n")
        self._out.flush()

    def say(self, text: str) -> None:
        pass

    def output(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


class PlainConsole:
    """Prints a line for each important event: for files, pipes and CI."""

    piece = 1 << 16
    is_terminal = False

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._state = RunState()
        self._phase: str | None = None
        self._said = -_QUIET
        """Time of the last line of a step."""

    def event(self, event: Event) -> None:
        self._state.apply(event)
        if self._state.start is None:  # the run ended before it began
            return
        phase = self._state.common_phase
        if phase != self._phase and phase is not None:
            self._phase = phase
            # The first process of a program prints its own phases.
            printed = self._state.is_program and phase in PHASES
            if not printed and phase in (
                Phase.SETUP,
                Phase.RESTORE,
                Phase.COMPILE,
                Phase.CONNECT,
                "ready",
                "running",
                Phase.SAMPLE,
            ):
                count = len(self._state.processes)
                who = f"all {count} processes" if count > 1 else "the process"
                self.say(f"{who}: {phase_words(phase, is_program=self._state.is_program)}")
        if is_in_output(self._state, event):
            return
        if text := notable_line(event) or self._building(event):
            self.say(text)
        if event["event"] == EventKind.STEP and event["process"] == 0 and self._is_due(event):
            self.say(step_line(event))

    def _is_due(self, event: StepEvent) -> bool:
        """Return whether a step gets a line: it has metrics, is the last one, or no line was printed for a while."""
        now = time.monotonic()
        if not describe_step(event) and event["step"] != event["steps"] and now - self._said < _QUIET:
            return False
        self._said = now
        return True

    def _building(self, event: Event) -> str | None:
        """Return a line about the first host's progress with environment or data, which takes minutes; otherwise None."""
        if event["event"] != EventKind.HOST or event["phase"] not in ("environment", "setup-commands", "data"):
            return None
        first = self._state.start is not None and event["host"] == next(iter(self._state.start["hosts"]))
        return f"{event['host']}: {event['message']}" if first and event.get("message") else None

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    output = say

    def stop(self) -> None:
        pass
