"""Read the state of a run from its recorded events."""

from __future__ import annotations

from podrun.runtime.events import EventKind

from .events import parse_event
from .run_state import RunState
from .runs import RunDirectory

_STEP = f'"event": "{EventKind.STEP}"'.encode()


def read_state(directory: RunDirectory) -> RunState:
    """Return the state of a run without `reported`. Its `start` is None if the run has not begun."""
    state = RunState()
    last_steps: dict[bytes, bytes] = {}
    for line in directory.lines():
        if _STEP in line[:40]:  # most lines are steps, of which only each process's last one matters
            last_steps[line[line.rfind(b'"host"') :]] = line
        elif event := parse_event(line):
            if event["event"] == EventKind.START:
                last_steps = {}
            state.apply(event)
    for line in last_steps.values():
        if (event := parse_event(line)) and event["event"] == EventKind.STEP:
            state.apply(event)
    return state
