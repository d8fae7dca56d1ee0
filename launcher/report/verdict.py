"""Describe how a run ended, why, and the evidence. PURE."""

from __future__ import annotations

import re

from podrun.runtime.events import EventKind
from podrun.runtime.lines import clock

from ..rundir.events import EndEvent, Event
from ..rundir.run_state import NOTHING_LEFT
from ..rundir.run_summary import RunStatus
from ..view.folded_frames import fold_frames
from ..view.times import duration
from .model import StepTimes, Verdict

_LINES = 24  # lines of a traceback


def verdict_of(
    status: RunStatus, end: EndEvent | None, events: list[Event], begin: float, had_nothing_left: bool = False
) -> Verdict:
    """Return how a run ended and why. The message of the end names the first cause; its traceback is the evidence.

    `had_nothing_left`: all steps were done by earlier runs.
    """
    code = end["code"] if end else None
    title = {
        RunStatus.DONE: "Done",
        RunStatus.FAILED: f"Failed with exit code {code}",
        RunStatus.INTERRUPTED: "Interrupted",
        RunStatus.PENDING: "In the queue",
        RunStatus.RUNNING: "Running",
        RunStatus.ABANDONED: "Abandoned: it has not ended, and has no supervisor",
    }[status]
    text = "" if end is None or code == 0 else cause_of(end["message"])
    if status is RunStatus.INTERRUPTED:  # which the title says
        text = "" if text == "interrupted" else text.removeprefix("interrupted; ")
    if status is RunStatus.DONE and had_nothing_left:
        text = NOTHING_LEFT
    restarts = [
        (clock(event["time"] - begin), event["message"]) for event in events if event["event"] == EventKind.RESTART
    ]
    return Verdict(str(status), title, text, _evidence(end, events), restarts)


def cause_of(message: str) -> str:
    """Return the cause in the message of a failed run's end, without the state and the exit code."""
    return re.sub(r" \[exit code -?\d+\]$", "", message.removeprefix("failed: "))


def _evidence(end: EndEvent | None, events: list[Event]) -> list[str]:
    """Return the last lines of the traceback of the process that the end event names, in the last attempt."""
    if end is None or end["host"] is None:
        return []
    for event in reversed(events):
        if event["event"] == EventKind.START:
            break
        if event["event"] == EventKind.ERROR and event["host"] == end["host"]:
            return fold_frames(str(event.get("traceback") or "").rstrip().splitlines())[-_LINES:]
    return []


def straggler(step_times: list[StepTimes]) -> str:
    """Return a sentence about the straggler that cost the others the most time; empty if there is none."""
    late = max((row for row in step_times if row.late), key=lambda t: t.late * (t.share or 0.0), default=None)
    if late is None:
        return ""
    behind, share = 1000 * (late.behind or 0.0), late.share or 0.0
    lost = f"{duration(late.late * share)} lost in {duration(late.late)}"
    return f"{late.name} keeps the others waiting: {behind:.3g} ms of each step, {100 * share:.0f} %; {lost}"
