"""Summarize a run in one row, from a small part of its run directory."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from podrun.runtime.events import EventKind, StepEvent
from podrun.runtime.lines import shown_metrics

from ..agent.base.schema import Malformed, anything, each, loads, printable, record, text
from .events import LIMIT, EndEvent, StartEvent
from .run_state import reduce_events
from .runs import RunDirectory, label_of
from .submitted import end_of, is_pending

_APPEAR = 30.0  # seconds from the creation of a run directory to its supervisor
_POD = record({"slice": record({"name": text}), "hosts": each(anything), "transport": text})
_SPEC = record({"pod": _POD, "job": record({}, {"argv": each(text)}), "workdir": text})
_LOOK_BACK = 2000  # number of last events that are searched for the last step


class RunStatus(StrEnum):
    """State of a run: that it continues, or how it has ended."""

    PENDING = "pending"  # its job waits in a queue
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    ABANDONED = "abandoned"  # it has not ended, and has no supervisor


@dataclass(frozen=True)
class Summary:
    """Summary of a run."""

    run: str
    state: RunStatus
    code: int | None
    """Exit code of an ended run."""
    slice: str
    hosts: int
    transport: str
    step: int | None
    steps: int | None
    loss: float | None
    metric: str | None
    """Name of the run's main metric: the first one on the console's line of a step."""
    value: float | None
    """Value of that metric at the last step that has one."""
    job: str
    """Command line of a user program, otherwise the workdir."""
    program: bool
    name: str
    """The user's name for it."""
    tags: list[str]
    workdir: str
    started: float
    ended: float | None
    """Time of the run's end; for an abandoned run, of its last event."""
    supervisor: int | None
    directory: str

    @property
    def has_ended(self) -> bool:
        return self.state not in (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.ABANDONED)


def status_of(directory: RunDirectory) -> tuple[RunStatus, EndEvent | None, int | None]:
    """Return the status, the end event, and the pid of the supervisor."""
    supervisor = directory.supervisor()  # checked first: the end is recorded before the lock is released
    end = end_of(directory)
    if end is not None:
        if end["code"] == 0:
            return RunStatus.DONE, end, None
        return RunStatus.INTERRUPTED if end["host"] is None else RunStatus.FAILED, end, None
    if supervisor is not None or _is_new(directory):
        return RunStatus.RUNNING, None, supervisor
    if directory.job() is not None:
        return RunStatus.PENDING if is_pending(directory) else RunStatus.RUNNING, None, None
    return RunStatus.ABANDONED, None, None


def summarize(directory: RunDirectory) -> Summary:
    """Summarize the run, ignoring damaged records. Never raises."""
    status, end, supervisor = status_of(directory)
    start = directory.start() or _from_spec(directory)
    last = end or next(directory.newest_events(), None)
    state = reduce_events(event for event in (start, *_last_steps(directory), end) if event)
    step, label = state.step, label_of(directory)
    return Summary(
        run=directory.run_id,
        state=status,
        code=end["code"] if end else None,
        slice=start["slice"],
        hosts=len(start["hosts"]),
        transport=start["transport"],
        step=step["step"] if step else None,
        steps=step["steps"] if step else None,
        loss=step.get("loss") if step else None,
        metric=next(iter(shown_metrics(step)), None) if step else None,
        value=next(iter(shown_metrics(step).values()), None) if step else None,
        job=start["program"] or start["workdir"],
        program=state.is_program,
        name=label.name,
        tags=[*label.tags],
        workdir=start["workdir"],
        started=start["time"],
        ended=None if status in (RunStatus.RUNNING, RunStatus.PENDING) else (last or start)["time"],
        supervisor=supervisor,
        directory=str(directory.path),
    )


def counted_states(summaries: Iterable[Summary]) -> str:
    """Return how many runs are in each state: `10 done, 1 failed, 1 pending`."""
    counts = Counter(summary.state for summary in summaries)
    return ", ".join(f"{counts[state]} {state}" for state in RunStatus if counts[state])


def _is_new(directory: RunDirectory) -> bool:
    """Return True if the directory was just created and has no event yet."""
    return not directory.events.exists() and time.time() - _made(directory.path) < _APPEAR


def _made(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _last_steps(directory: RunDirectory) -> list[StepEvent]:
    """Return the last step; if it has no metrics, also the last step with metrics, before it."""
    recent = itertools.islice(directory.newest_events(), _LOOK_BACK)
    steps: list[StepEvent] = []
    for event in recent:
        if event["event"] == EventKind.STEP and (not steps or shown_metrics(event)):
            steps.insert(0, event)
            if shown_metrics(event):
                break
    return steps


def _from_spec(directory: RunDirectory) -> StartEvent:
    """Return a first event from the spec, for a run without events."""
    try:
        spec = printable(loads((directory.path / "spec.json").read_bytes(), LIMIT))
        _SPEC(spec)
    except (OSError, Malformed):
        spec = {"pod": {"slice": {"name": "?"}, "hosts": [], "transport": "?"}, "job": {}, "workdir": "?"}
    pod, job = spec["pod"], spec["job"]
    return {
        "event": EventKind.START,
        "run_id": directory.run_id,
        "attempt": 0,
        "slice": pod["slice"]["name"],
        "devices": 0,
        "hosts": {str(number): [] for number in range(len(pod["hosts"]))},
        "transport": pod["transport"],
        "program": " ".join(job["argv"]) if "argv" in job else None,
        "workdir": spec["workdir"],
        "logs": str(directory.logs),
        "time": _made(directory.path),
    }
