"""Divide the time of a run among kinds of work, for each process. PURE."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from podrun.runtime.contract import Phase
from podrun.runtime.events import EventKind, StepEvent

from ..pod.pod import process_name
from ..rundir.events import Event
from .lost import lost_from_of
from .model import Share, Strip, Strips
from .records import finite

KINDS: dict[str, str] = {
    "train": "training",
    "data": "waiting for data",
    "start": "starting: hosts, processes, data, model",
    "compile": "compiling, and the first step",
    "restore": "restoring a checkpoint",
    "evaluate": "evaluating",
    "save": "saving checkpoints",
    "other": "waiting for the end",
    "unknown": "not known: the program does not report what it does",
    "lost": "lost: trained, but not saved",
    "down": "down: after a failure",
}
"""Labels by kind of work. Each moment of a process has one kind, so the shares add up to 1."""
_OF_PROGRAM = {"compile": "the first step, and what it compiles"}
"""Labels that differ for user programs, which need not compile."""
_OF_SAMPLING = {"other": "sampling text, waiting for the end"}
"""Labels that differ for jobs that sample text."""
_OF_PHASE: dict[str, str] = {
    Phase.CONNECT: "start",
    Phase.SETUP: "start",
    Phase.RESTORE: "restore",
    Phase.COMPILE: "compile",
    Phase.TRAIN: "train",
    Phase.EVALUATE: "evaluate",
    Phase.SAVE: "save",
    Phase.SAMPLE: "other",
    Phase.DONE: "other",
}
_LOSABLE = ("train", "data", "evaluate", "save")
_STARVED = 0.5  # fraction of waiting for data from which a span of training is drawn as starved
_WIDE, _NARROW, _FEW = 1200, 300, 32  # columns of a strip for few and for many processes, and the limit between them

Key = tuple[str, int]
Span = tuple[float, float, str]
"""Part of a timeline: (begin, end, kind of work)."""


@dataclass
class Lane:
    """The timeline of one process."""

    host: str
    process: int
    spans: list[Span] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    """Seconds of each kind, weighted to a mean over the processes of each attempt, whose number may change."""
    drawn: list[Span] = field(default_factory=list)
    """Spans that are drawn on top of the others."""


def lanes_of(events: Iterable[Event], steps: dict[Key, list[StepEvent]], end: float) -> list[Lane]:
    """Return the timelines of all processes from the first start to `end`, with lost work marked."""
    attempts = attempts_of(events)
    lanes: dict[Key, Lane] = {}
    for number, attempt in enumerate(attempts):
        begin, until = attempt[0]["time"], attempts[number + 1][0]["time"] if number + 1 < len(attempts) else end
        lost_from = lost_from_of(attempts, number, steps)
        done = {key: [e for e in some if begin <= e["time"] < until] for key, some in steps.items()}
        first_steps = {key: some[0]["time"] for key, some in done.items() if some}
        spans_by_process = _spans_of(attempt, until, first_steps)
        for key, spans in spans_by_process.items():
            lane = lanes.setdefault(key, Lane(*key))
            spans = _mark_lost(spans, lost_from)
            lane.spans += spans
            starved = _add_starved(lane, done.get(key, []), lost_from)
            _add_seconds(lane, spans, starved, 1 / len(spans_by_process))
    return sorted(lanes.values(), key=lambda lane: lane.process)


def attempts_of(events: Iterable[Event]) -> list[list[Event]]:
    """Return the events of each attempt, from its start on."""
    attempts: list[list[Event]] = []
    for event in events:
        if event["event"] == EventKind.START:
            attempts.append([])
        if attempts:
            attempts[-1].append(event)
    return attempts


def _spans_of(attempt: list[Event], until: float, first_steps: dict[Key, float]) -> dict[Key, list[Span]]:
    """Return the timelines of an attempt's processes.

    Args:
        attempt: its events.
        until: time at which it ends.
        first_steps: time of the first step that each process has reported in it.
    """
    start = attempt[0]
    assert start["event"] == EventKind.START
    is_program = start["program"] is not None
    reports = {(event["host"], event["process"]) for event in attempt if event["event"] == EventKind.PHASE}
    trains = {
        (event["host"], event["process"])
        for event in attempt
        if event["event"] == EventKind.PHASE and event["phase"] == Phase.TRAIN
    }
    keys = [(host, process) for host, processes in start["hosts"].items() for process in processes]
    changes: dict[Key, list[tuple[float, str]]] = {key: [(start["time"], "start")] for key in keys}
    for event in attempt[1:]:
        match event["event"]:
            case EventKind.RESTART:
                for rows in changes.values():
                    rows.append((event["time"], "down"))
                continue
            case EventKind.PHASE:
                kind = _OF_PHASE.get(event["phase"], "other")
            case EventKind.EXIT:
                kind = "other" if event["code"] == 0 else "down"
            case EventKind.HOST if event["phase"] == "started" and is_program:
                kind = "start" if (event["host"], event["process"]) in reports else "unknown"
            case _:
                continue
        if (key := (event["host"], event["process"])) in changes:
            changes[key].append((event["time"], kind))
    for key in first_steps.keys() & changes.keys() - trains:  # it reports steps, but its loop is not podrun's
        at = first_steps[key]
        before = [change for change in changes[key] if change[0] <= at]
        changes[key] = [*before, (at, "train"), *changes[key][len(before) :]]
    return {key: _joined(rows, until) for key, rows in changes.items()}


def _joined(changes: list[tuple[float, str]], until: float) -> list[Span]:
    """Return the spans between changes of the kind of work, the last one until `until`.

    A change may have an earlier time than the one before it, because clocks of hosts differ.
    """
    spans: list[Span] = []
    ordered: list[tuple[float, str]] = []
    for time, kind in changes:
        ordered.append((min(until, max(time, ordered[-1][0] if ordered else time)), kind))
    for (begin, kind), (end, _) in zip(ordered, [*ordered[1:], (until, "")], strict=True):
        if spans and spans[-1][2] == kind:
            spans[-1] = (spans[-1][0], end, kind)
        elif end > begin:
            spans.append((begin, end, kind))
    return spans


def _mark_lost(spans: list[Span], lost_from: float | None) -> list[Span]:
    if lost_from is None:
        return spans
    marked: list[Span] = []
    for begin, end, kind in spans:
        if kind not in _LOSABLE or end <= lost_from:
            marked.append((begin, end, kind))
            continue
        if begin < lost_from:
            marked.append((begin, lost_from, kind))
        marked.append((max(begin, lost_from), end, "lost"))
    return marked


def _add_starved(lane: Lane, steps: list[StepEvent], lost_from: float | None) -> float:
    """Mark long waits for data in the lane, and return the seconds of all waits whose work was kept."""
    total = 0.0
    for before, after in pairwise(steps):
        waited = [finite(e.get("waited_for_data")) for e in (before, after)]
        if waited[0] is None or waited[1] is None or (lost_from is not None and after["time"] > lost_from):
            continue
        seconds, passed = waited[1] - waited[0], after["time"] - before["time"]
        total += max(0.0, min(seconds, passed))
        if passed > 0 and seconds > _STARVED * passed:
            lane.drawn.append((before["time"], after["time"], "data"))
    return total


def _add_seconds(lane: Lane, spans: list[Span], starved: float, weight: float) -> None:
    """Add an attempt's seconds of each kind of work to the lane. Seconds of waiting for data do not count as training.

    Args:
        lane: the timeline.
        spans: the attempt's spans.
        starved: seconds of waiting for data.
        weight: 1 divided by the number of processes in the attempt.
    """
    sums = dict.fromkeys(KINDS, 0.0)
    for begin, end, kind in spans:
        sums[kind] += end - begin
    starved = min(starved, sums["train"])
    sums["train"] -= starved
    sums["data"] += starved
    for kind, seconds in sums.items():
        lane.seconds[kind] += weight * seconds


def samples_text(events: Iterable[Event]) -> bool:
    """Return True if a process has sampled text."""
    return any(event["event"] == EventKind.PHASE and event["phase"] == Phase.SAMPLE for event in events)


def shares_of(lanes: list[Lane], *, is_program: bool = False, is_sampling: bool = False) -> list[Share]:
    """Return the share of each kind that occurs, as a mean over the processes, in the order of KINDS."""
    totals = {kind: sum(lane.seconds[kind] for lane in lanes) for kind in KINDS}
    wall = sum(totals.values())
    labels = {**KINDS, **(_OF_PROGRAM if is_program else {}), **(_OF_SAMPLING if is_sampling else {})}
    return [
        Share(kind, label, totals[kind], totals[kind] / wall if wall else 0.0)
        for kind, label in labels.items()
        if totals[kind] > 0 or kind == "train"
    ]


def strips_of(lanes: list[Lane], begin: float, end: float) -> Strips:
    """Return a row per process. Each column shows the kind of work with the most time in it; failures are always shown."""
    columns = _WIDE if len(lanes) <= _FEW else _NARROW
    per_host: dict[str, int] = {}
    for lane in lanes:
        per_host[lane.host] = per_host.get(lane.host, 0) + 1
    kinds = ["", *KINDS]
    rows = []
    for lane in lanes:
        name = process_name(lane.host, lane.process, per_host[lane.host])
        cells = _cells([*lane.spans], begin, end, columns)
        for number, kind in _cells(lane.drawn, begin, end, columns).items():
            if cells.get(number) == "train":
                cells[number] = kind
        rows.append(Strip(name, run_lengths([kinds.index(cells.get(n, "")) for n in range(columns)])))
    return Strips("time", kinds, end - begin, columns, rows)


def _cells(spans: list[Span], begin: float, end: float, columns: int) -> dict[int, str]:
    """Return the kind of work of each column that has one, by the column's number."""
    width = (end - begin) / columns or 1.0
    most: dict[int, tuple[float, str]] = {}
    for first, last, kind in spans:
        low = max(0, int((first - begin) / width))
        high = min(columns - 1, int((last - begin) / width))
        for column in range(low, high + 1):
            left = begin + column * width
            part = min(last, left + width) - max(first, left)
            if part > most.get(column, (0.0, ""))[0]:
                most[column] = (part, kind)
    return {column: kind for column, (_, kind) in most.items()}


def run_lengths(cells: list[int]) -> list[tuple[int, int]]:
    """Return the cells as (value, number of repetitions) pairs."""
    runs: list[tuple[int, int]] = []
    for cell in cells:
        if runs and runs[-1][0] == cell:
            runs[-1] = (cell, runs[-1][1] + 1)
        else:
            runs.append((cell, 1))
    return runs
