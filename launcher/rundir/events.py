"""Declare and validate events: those from a worker's file, to which a user program can write as well, and recorded ones.

Each kind has the fields on which views and the supervisor rely. An event without them is malformed.
"""

from __future__ import annotations

from typing import Any

from podrun.runtime.contract import ErrorKind, Event, EventKind

from ..agent.base.from_agent import Measured
from ..agent.base.message import fields_of
from ..agent.base.schema import (
    Check,
    Malformed,
    count,
    each,
    flag,
    integer,
    loads,
    maybe,
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


_METRICS: dict[str, Check] = dict.fromkeys(("loss", "accuracy", "tokens_per_second", "examples_per_second"), metric)
_TIMES: dict[str, Check] = {
    "elapsed": number,
    "seconds_left": maybe(number),
    "waited": number,
    "waited_for_data": number,
}
_OF_WORKER: dict[str, Check] = {
    EventKind.PHASE: record({"time": _moment, "phase": text}),
    EventKind.STEP: record({"time": _moment, "step": count, "steps": maybe(count)}, {**_METRICS, **_TIMES}),
    EventKind.EPOCH: record({"time": _moment, "step": count, "epoch": count, "epochs": number}),
    EventKind.EVAL: record({"time": _moment, "step": count}),
    EventKind.CHECKPOINT: record({"time": _moment, "step": count}),
    EventKind.RESUME: record({"time": _moment, "step": count}),
    EventKind.TEXT: record({"time": _moment, "text": text}),
    EventKind.NOTE: record({"time": _moment, "message": text}),
    EventKind.PROFILE: record(
        {"time": _moment, "id": text, "state": text, "step": count, "last": count, "error": text}
    ),
    EventKind.SIGNAL: record({"time": _moment, "number": count}),
    EventKind.ERROR: record(
        {"time": _moment, "kind": _error_kind, "message": text},
        {"step": maybe(count), "code": maybe(integer), "traceback": text, "program": flag},
    ),
}
_START = {
    "time": _moment,
    "run_id": text,
    "attempt": count,
    "slice": text,
    "devices": count,
    "transport": text,
    "hosts": _hosts,
    "program": maybe(text),
    "workdir": text,
    "logs": text,
}
_END = {"time": _moment, "code": integer, "host": maybe(text), "message": text}
_RESTART: dict[str, Check] = {
    "time": _moment,
    "message": text,
    "ending": text,
    "code": integer,
    "what": text,
    "trained": flag,
    "saved": maybe(count),
    "seconds": number,
    "silent_program": flag,
}
_LATE: dict[str, Check] = {
    "time": _moment,
    "host": text,
    "process": count,
    "behind": number,
    "step_seconds": number,
    "since": _moment,
}
_OF_LAUNCHER: dict[str, Check] = {
    EventKind.START: record(_START, {"python": maybe(text)}),
    EventKind.HOST: record({"time": _moment, "host": text, "phase": text}, {"pid": count, "message": text}),
    EventKind.EXIT: record({"time": _moment, "host": text, "process": count, "code": integer}),
    EventKind.LATE: record(_LATE),
    EventKind.USAGE: record({"time": _moment, "host": text, **fields_of(Measured)[0]}),
    EventKind.RESTART: record(_RESTART),
    EventKind.END: record(_END, {"process": maybe(count), "left_behind": each(text)}),
}
_STARTED = record({"process": count, "pid": count}, {"standby": flag})
_AGENT = record({"pid": count})
_SENT = record({"host": text, "process": count})
"""Fields that the supervisor adds to an event of a worker."""


def parse_worker_event(line: bytes) -> Event:
    """Return the event that a worker reported. Raises Malformed."""
    event = _load(line)
    kind = event["event"]
    if kind not in _OF_WORKER:
        raise Malformed(f"unknown event {short(kind)}")
    _check(_OF_WORKER[kind], event)
    return event


def parse_event(line: str | bytes) -> Event | None:
    """Return a recorded event; None for a damaged line, such as one that a full disk has cut off."""
    try:
        event = _load(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line)
        _check_recorded(event)
    except Malformed:
        return None
    return event


def _load(line: bytes) -> Event:
    event = loads(line, LIMIT, finite=False)
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise Malformed(f"not an object with an event: {short(line)}")
    readable: Event = printable(event) if b"\\u" in line else event
    return readable


def _check_recorded(event: Event) -> None:
    kind = event["event"]
    if kind in _OF_WORKER:
        _check(_OF_WORKER[kind], event)
        if kind != EventKind.NOTE:  # the launcher has notes as well
            _check(_SENT, event)
    elif kind in _OF_LAUNCHER:
        _check(_OF_LAUNCHER[kind], event)
        phase = event.get("phase")
        if kind == EventKind.HOST and phase in ("started", "hello"):
            _check(_STARTED if phase == "started" else _AGENT, event)
    else:
        raise Malformed(f"unknown event {short(kind)}")


def _check(check: Check, event: Event) -> None:
    try:
        check(event)
    except Malformed as why:
        raise Malformed(f"{event['event']}: {why}") from None
