"""Compute how fast each process is, and how long the others wait for it. PURE.

Stragglers are not judged here: the supervisor names them while the run is going (`attempt/stragglers.py`).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from podrun.runtime.events import EventKind, StepEvent

from ..pod.pod import process_name
from ..rundir.events import Event, LateEvent
from ..rundir.lateness import behind_others
from .model import StepTimes, Strip, Strips
from .records import Records, finite
from .timeline import Key, run_lengths

_MOST_WINDOWS = 120
LEVELS = ["", "up to 5 %", "5 to 20 %", "20 to 50 %", "over 50 %"]
_BOUNDS = (0.0, 0.05, 0.2, 0.5)


@dataclass
class Lag:
    """How long one process waits for the others, and the others for it: a value per window of time in which others report."""

    waits: list[float] = field(default_factory=list)
    """Seconds per step for which it waits, per window."""
    behind: list[float] = field(default_factory=list)
    """Seconds per step for which the others wait for it, per window."""
    shares: list[float] = field(default_factory=list)
    """`behind` as a fraction of the step."""
    windows: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Time at the middle of each window."""


def lags_of(by_process: dict[Key, list[StepEvent]], begin: float, end: float) -> dict[Key, Lag]:
    """Return the waiting times of each process, per window of time because processes report different steps."""
    count = _count(by_process)
    width = (end - begin) / count or 1.0
    windows = {key: _windows(steps, begin, width, count) for key, steps in by_process.items()}
    lags = {key: Lag() for key in by_process}
    for number in range(count):
        waits = {key: wait for key, mine in windows.items() if (wait := _wait(mine.get(number, []))) is not None}
        steps = [s for key in waits if (s := _middle(windows[key][number], "seconds_per_step"))]
        if len(waits) < 2 or not steps:
            continue
        step, behind = statistics.median(steps), behind_others(waits)
        for key, wait in waits.items():
            lag = lags[key]
            lag.waits.append(wait)
            lag.behind.append(behind[key])
            lag.shares.append(min(1.0, behind[key] / step))
            lag.windows.append(number)
            lag.times.append(begin + (number + 0.5) * width)
    return lags


def named_late(events: Iterable[Event], end: float) -> dict[Key, list[tuple[float, float]]]:
    """Return the periods (begin, end) in which the supervisor called each process a straggler."""
    spans: dict[Key, list[tuple[float, float]]] = {}
    late: LateEvent | None = None
    for event in events:
        if late is not None and event["event"] in (EventKind.LATE, EventKind.RESTART, EventKind.START, EventKind.END):
            _add_span(spans, late, event["time"])
            late = None
        if event["event"] == EventKind.LATE and event["behind"]:
            late = event
    if late is not None:
        _add_span(spans, late, end)
    return spans


def _add_span(spans: dict[Key, list[tuple[float, float]]], late: LateEvent, end: float) -> None:
    spans.setdefault((late["host"], late["process"]), []).append((late["since"], end))


def step_times_of(
    records: Records, lags: dict[Key, Lag], named: Mapping[Key, list[tuple[float, float]]]
) -> list[StepTimes]:
    """Return a row of step times for each process, sorted by its number.

    Args:
        records: the records of the run.
        lags: the waiting times of each process.
        named: the periods in which the supervisor called a process a straggler; only these count for that process.
    """
    rows, by_process = [], records.by_process
    names = _names(by_process)
    for key, steps in sorted(by_process.items(), key=lambda item: item[0][1]):
        lag, spans = lags[key], named.get(key, [])
        counted = [n for n, time in enumerate(lag.times) if any(begin <= time <= end for begin, end in spans)]
        counted = counted or list(range(len(lag.times)))
        waits, behind, share = (_mean(v, counted) for v in (lag.waits, lag.behind, lag.shares))
        p50, p95 = _middle(steps, "step_seconds_p50"), _slow(steps)
        if p50 is None and (paces := _paces(steps)):  # a program reports only when a step was done
            p50, p95 = statistics.median(paces), _percentile_95(paces)
        seconds = sum(end - begin for begin, end in spans)
        last: int = records.last_steps[key] if key in records.last_steps else steps[-1]["step"]
        rows.append(StepTimes(names[key], last, p50, p95, waits, behind, share, seconds))
    return rows


def _mean(values: list[float], counted: list[int]) -> float | None:
    return statistics.fmean(values[n] for n in counted) if counted else None


def lateness_of(by_process: dict[Key, list[StepEvent]], lags: dict[Key, Lag], seconds: float) -> Strips | None:
    """Return a strip for each process: in each window of time, which share of a step the other processes waited for it.

    Args:
        by_process: steps that each process has reported.
        lags: the shares of each process, where they are known.
        seconds: length of a window.

    Returns:
        The strips, or None if no share is known.
    """
    if not any(lag.windows for lag in lags.values()):
        return None
    rows, count, names = [], _count(by_process), _names(by_process)
    for key in sorted(by_process, key=lambda key: key[1]):
        cells = [0] * count
        for number, share in zip(lags[key].windows, lags[key].shares, strict=True):
            cells[number] = sum(share > bound for bound in _BOUNDS) or 1
        rows.append(Strip(names[key], run_lengths(cells)))
    return Strips("late", LEVELS, seconds, count, rows)


def _count(by_process: dict[Key, list[StepEvent]]) -> int:
    """Return a number of windows so small that most processes report in each window while they train."""
    reports = sorted(len(steps) for steps in by_process.values())
    return max(1, min(_MOST_WINDOWS, reports[len(reports) // 4] // 2)) if reports else 1


def _windows(steps: list[StepEvent], begin: float, width: float, count: int) -> dict[int, list[StepEvent]]:
    """Return the steps in each window by its number, after the last step before it, from which differences are computed."""
    windows: dict[int, list[StepEvent]] = {}
    for before, step in zip([None, *steps], steps, strict=False):
        number = min(count - 1, max(0, int((step["time"] - begin) / width)))
        if number not in windows and before is not None:
            windows[number] = [before]
        windows.setdefault(number, []).append(step)
    return windows


def _wait(steps: list[StepEvent]) -> float | None:
    """Return the seconds per step for which a process waited; None if unknown.

    The recorded seconds are a sum that starts at 0 in each attempt.
    """
    seconds, count = 0.0, 0
    for before, after in pairwise(steps):
        first, last = finite(before.get("waited")), finite(after.get("waited"))
        if first is None or last is None or after["step"] <= before["step"] or last < first:
            continue
        seconds += last - first
        count += after["step"] - before["step"]
    return seconds / count if count else None


def _middle(steps: list[StepEvent], name: str) -> float | None:
    values = [value for step in steps if (value := finite(step.get(name))) is not None]
    return statistics.median(values) if values else None


def _slow(steps: list[StepEvent]) -> float | None:
    """Return a step time that 95 % of the steps do not exceed; None if unknown.

    It is the 95th percentile if each record is of one step, otherwise the median of the records' own percentiles.
    """
    medians = sorted(value for step in steps if (value := finite(step.get("step_seconds_p50"))) is not None)
    typical = _middle(steps, "step_seconds_p95")
    if any(step.get("step_seconds_p95") != step.get("step_seconds_p50") for step in steps) or not medians:
        return typical
    return _percentile_95(medians)


def _percentile_95(values: list[float]) -> float:
    """Return the value that 95 % of the `values` do not exceed."""
    return sorted(values)[max(0, math.ceil(0.95 * len(values)) - 1)]


def _paces(steps: list[StepEvent]) -> list[float]:
    """Return the seconds per step between each two reports of an attempt, whatever the process did between them."""
    paces = []
    for before, after in pairwise(steps):
        first, last, count = finite(before.get("elapsed")), finite(after.get("elapsed")), after["step"] - before["step"]
        if first is not None and last is not None and last > first and count > 0:
            paces.append((last - first) / count)
    return paces


def _names(keys: Collection[Key]) -> dict[Key, str]:
    among = Counter(host for host, _ in keys)
    return {(host, process): process_name(host, process, among[host]) for host, process in keys}
