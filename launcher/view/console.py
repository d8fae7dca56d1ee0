"""Show a run to the user: as plain lines, or JSON lines. What a terminal shows is in `live_console.py`."""

from __future__ import annotations

import json
import sys
from pathlib import PurePath
from typing import Protocol, TextIO

from podrun.runtime.config.bucket_url import url
from podrun.runtime.contract import Event, EventKind, Phase
from podrun.runtime.lines import milestone, step_line

from ..pod.traits import location, reached
from ..rundir.run_state import RunState
from .phases import phase_words


def headline(start: Event) -> str:
    """Return the first lines of a run: what it is, and the paths of its results."""
    hosts = "1 host" if len(start["hosts"]) == 1 else f"{len(start['hosts'])} hosts"
    kind = reached(start["transport"])
    devices = "1 device" if start["devices"] == 1 else f"{start['devices']} devices"
    lines = [f"podrun {start['run_id']}: {start['slice']} = {hosts} x {devices}, {kind}"]
    workdir = url(PurePath(start["workdir"])) or location(
        start["workdir"], start["transport"], next(iter(start["hosts"]), "")
    )
    lines += [f"  program {start['program']}"] if start["program"] else [f"  workdir {workdir}"]
    if start.get("python"):  # which of the machine's it is, if just `python` was typed
        lines.append(f"  python  {start['python']}")
    return "\n".join([*lines, f"  logs    {start['logs']}"])


def notable_line(event: Event) -> str | None:
    """Return a line for an event that deserves one in every view for people, or None."""
    kind = event["event"]
    if kind == EventKind.START:
        return headline(event) if event["attempt"] == 0 else None
    return milestone(event)


def is_in_output(state: RunState, event: Event) -> bool:
    """Return whether the line of an event is in the output of a user program's first process, which is shown as well."""
    return state.is_program and event.get("process") == 0 and event["event"] not in (EventKind.HOST, EventKind.EXIT)


class Console(Protocol):
    """Show the events of a run."""

    piece: int
    """Bytes of a user program's output that are shown at once; 0: none at all."""
    is_terminal: bool
    """True if a person reads along, so that old output may be skipped."""

    def event(self, event: Event) -> None:
        """Show an event."""

    def say(self, text: str) -> None:
        """Show a text."""

    def output(self, text: str) -> None:
        """Show a piece of a user program's output."""

    def stop(self) -> None:
        """End the view of an attempt."""


class NoConsole:
    """Console of a background supervisor, whose events are only recorded."""

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


class JsonConsole:
    """Print every event as a JSON line on stdout."""

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
    """Print a line for each important event: for files, pipes and CI."""

    piece = 1 << 16
    is_terminal = False

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._state = RunState()
        self._phase: str | None = None

    def event(self, event: Event) -> None:
        self._state.apply(event)
        if self._state.start is None:  # the end of a run that never began
            return
        phase = self._state.common_phase
        if phase != self._phase and phase is not None:
            self._phase = phase
            if phase in (Phase.SETUP, Phase.RESTORE, Phase.COMPILE, Phase.CONNECT, "ready", "running", Phase.SAMPLE):
                count = len(self._state.processes)
                who = f"all {count} processes" if count > 1 else "the process"
                self.say(f"{who}: {phase_words(phase)}")
        if is_in_output(self._state, event):
            return
        if text := notable_line(event) or self._building(event):
            self.say(text)
        if event["event"] == EventKind.STEP and event["process"] == 0:
            self.say(step_line(event))

    def _building(self, event: Event) -> str | None:
        """Return the first host's progress with its environment, setup commands or data, which take minutes."""
        if event["event"] != EventKind.HOST or event["phase"] not in ("environment", "setup-commands", "data"):
            return None
        first = self._state.start is not None and event["host"] == next(iter(self._state.start["hosts"]))
        return f"{event['host']}: {event['message']}" if first and event.get("message") else None

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    output = say

    def stop(self) -> None:
        pass
