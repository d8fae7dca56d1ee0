"""Declare the launcher's events, and validate all events: recorded ones, and lines of a worker's file.

A user program can write to its worker's file as well. The checks are derived from the declarations, here and in
`runtime/events.py`, so the annotations of this file must not be strings. The record may have been written by another version.
"""

import math
from collections.abc import Collection
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeGuard, cast, get_args, get_origin

from podrun.runtime.contract import ErrorKind
from podrun.runtime.events import Count, EventKind, Metric, Moment, WorkerEvent

from ..agent.base.from_agent import Measured
from ..agent.base.message import check_of
from ..agent.base.schema import (
    Check,
    Malformed,
    count,
    each,
    loads,
    metric,
    number,
    printable,
    record,
    short,
    table,
    text,
)

_LAST_MOMENT = 250_000_000_000  # in the year 9892
LIMIT = 4 << 20
"""Maximum size of an event in bytes. The largest contain sampled text or a traceback."""

Finite = Annotated[float, "finite, of any size"]
Hosts = Annotated[dict[str, list[int]], "ids of the processes by host"]


class _OfLauncher(TypedDict, total=False):
    time: Moment
    """Set when the event is recorded; required in recorded events."""


class StartEvent(_OfLauncher):
    """An attempt begins."""

    event: Literal[EventKind.START]
    run_id: str
    attempt: Count
    slice: str
    devices: Count
    """Devices per host."""
    transport: str
    hosts: Hosts
    program: str | None
    """Command line of a user program."""
    python: NotRequired[str | None]
    workdir: str
    logs: str


class HostEvent(_OfLauncher):
    """A host enters a phase of the start or the end of an attempt."""

    event: Literal[EventKind.HOST]
    host: str
    phase: str
    process: NotRequired[Count]
    """Number of the worker, in the phase `started`, like `pid` and `standby`."""
    pid: NotRequired[Count]
    """Pid of the worker, or of the agent in the phase `hello`."""
    standby: NotRequired[bool]
    python: NotRequired[str]
    message: NotRequired[str]
    """Progress in this phase."""
    reason: NotRequired[str]
    """Reason for the phases `stopped` and `lost`."""
    kept: NotRequired[str]
    """Folder on the host with the files that the program wrote beside its code."""
    left: NotRequired[list[Count] | None]
    """Pids of processes that may still run; None if unknown."""


class ExitEvent(_OfLauncher):
    """A worker has ended."""

    event: Literal[EventKind.EXIT]
    host: str
    process: Count
    code: int
    asked: NotRequired[bool]
    """True if podrun had asked it to stop before."""


class LateEvent(_OfLauncher):
    """The other processes wait for this process in each step, or no longer do."""

    event: Literal[EventKind.LATE]
    host: str
    process: Count
    behind: float
    """Seconds per step for which the others wait; 0: no longer late."""
    step_seconds: float
    since: Moment


class UsageEvent(Measured):
    """The use of a host."""

    event: Literal[EventKind.USAGE]
    time: Moment
    host: str


class RestartEvent(_OfLauncher):
    """An attempt has ended, and another one follows. The fields are as in `run.policy.Attempt`."""

    event: Literal[EventKind.RESTART]
    message: str
    ending: str
    code: int
    what: str
    trained: bool
    saved: Count | None
    seconds: float
    silent_program: bool
    delay: NotRequired[float]
    """Seconds that podrun waits before the next start, by its restart policy."""


class EndEvent(_OfLauncher):
    """The run has ended."""

    event: Literal[EventKind.END]
    code: int
    host: str | None
    """The host of the first cause; None if nothing failed."""
    process: NotRequired[Count | None]
    message: str
    left_behind: NotRequired[list[str]]
    """`host: reason` for each host that may still run processes."""


class Row(TypedDict):
    """A step's metrics, each under its name: a line of metrics.jsonl, or an event."""

    step: Count


LauncherEvent = StartEvent | HostEvent | ExitEvent | LateEvent | UsageEvent | RestartEvent | EndEvent
Event = WorkerEvent | LauncherEvent


class _AgentStarted(TypedDict):
    pid: Count


class _WorkerStarted(_AgentStarted):
    process: Count


def _error_kind(value: Any) -> None:
    if value not in [kind.value for kind in ErrorKind]:
        raise Malformed(f"{short(value)}, expected one of {', '.join(ErrorKind)}")


def _name(value: Any) -> None:
    """Accept a string that can be part of a file name."""
    text(value)
    if not value or "/" in value or "\0" in value:
        raise Malformed(f"{short(value)}, expected a name")


def _hosts(value: Any) -> None:
    table(each(count, 1))(value)
    if not value:
        raise Malformed("empty")
    for name in value:
        _name(name)


def _moment(value: Any) -> None:
    """Accept seconds since 1970, within the range of `datetime`."""
    number(value)
    if not 0 <= value < _LAST_MOMENT:
        raise Malformed(f"{short(value)}, expected seconds since 1970")


def _finite(value: Any) -> None:
    """Accept a finite number; the loss of a training that diverges may be huge."""
    metric(value)
    if not math.isfinite(value):
        raise Malformed(f"{short(value)}, expected a finite number")


_KNOWN: dict[Any, Check] = {
    Count: count,
    Metric: metric,
    Finite: _finite,
    Moment: _moment,
    Hosts: _hosts,
    ErrorKind: _error_kind,
}


def checks_of(events: Any, unset: Collection[str] = ()) -> dict[str, Check]:
    """Return the check of each event in a union, by its kind. `unset`: names of fields that are not yet set."""
    return {get_args(event.__annotations__["event"])[0]: _check_of(event, unset) for event in get_args(events)}


def _check_of(declared_event: Any, unset: Collection[str] = ()) -> Check:
    fields, optional = {}, {}
    for cls in reversed(declared_event.__mro__):
        for name, declared in getattr(cls, "__annotations__", {}).items():
            if get_origin(declared) is NotRequired:
                optional[name] = check_of(get_args(declared)[0], _KNOWN)
            elif name != "event" and name not in unset:
                fields[name] = check_of(declared, _KNOWN)
    return record(fields, optional)


_REPORTED = checks_of(WorkerEvent, unset=("host", "process"))
_RECORDED = checks_of(Event)
_ROW = _check_of(Row)
_OF_PHASE = {"hello": _check_of(_AgentStarted), "started": _check_of(_WorkerStarted)}
"""Fields that a HostEvent has in certain phases."""


def is_of_worker(event: Event) -> TypeGuard[WorkerEvent]:
    """Return True if a worker reported the event. (A note may be the launcher's.)"""
    return event["event"] in _REPORTED and "process" in event


def saved_step(event: Event | WorkerEvent) -> int | None:
    """Return the step of the checkpoint on disk that an event is about; None if it is about none."""
    if event["event"] == EventKind.RESUME and "memory" in event:  # which ends with the run
        return event.get("disk")
    return event["step"] if event["event"] in (EventKind.CHECKPOINT, EventKind.RESUME) else None


def parse_worker_event(line: bytes) -> WorkerEvent:
    """Return the event in a line that a worker wrote. Raises Malformed."""
    event = load_event(line)
    check_event(_REPORTED, event)
    return cast(WorkerEvent, event)


def parse_event(line: str | bytes) -> Event | None:
    """Return a recorded event; None for a damaged line, such as one that a full disk has cut off."""
    try:
        event = load_event(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line)
        check_event(_RECORDED, event)
        if event["event"] == EventKind.HOST and event["phase"] in _OF_PHASE:
            _OF_PHASE[event["phase"]](event)
    except Malformed:
        return None
    return cast(Event, event)


def parse_row(line: bytes) -> Row | None:
    """Return a line of metrics.jsonl; None if it is damaged."""
    try:
        row: Row = loads(line, LIMIT, finite=False)
        _ROW(row)
    except Malformed:
        return None
    return row


def load_event(line: bytes) -> dict[str, Any]:
    event = loads(line, LIMIT, finite=False)
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise Malformed(f"not an object with an event: {short(line)}")
    readable: dict[str, Any] = printable(event) if b"\\u" in line else event
    return readable


def check_event(checks: dict[str, Check], event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind not in checks:
        raise Malformed(f"unknown event {short(kind)}")
    try:
        checks[kind](event)
    except Malformed as why:
        raise Malformed(f"{kind}: {why}") from None
