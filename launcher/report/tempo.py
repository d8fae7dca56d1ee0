"""Find how fast each process is, and who keeps the others waiting: it arrives last, so it waits least. PURE."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection
from itertools import pairwise

from podrun.runtime.contract import Event

from .model import Strip, Strips, Tempo
from .records import finite
from .timeline import Key, run_lengths

_NOISE, _FEW = 0.2, 60  # of a step, and steps over which it counts: about as the supervisor judges
_WINDOWS = 120
LEVELS = ["", "up to 5 %", "5 to 20 %", "20 to 50 %", "over 50 %"]
_BOUNDS = (0.0, 0.05, 0.2, 0.5)


def tempos_of(by_process: dict[Key, list[Event]], named: Collection[Key] = ()) -> list[Tempo]:
    """Return a row for each process, by its number. Those that the supervisor has `named` were late for a while."""
    waits = {key: _wait(steps) for key, steps in by_process.items()}
    longest = max((wait for wait in waits.values() if wait is not None), default=None)
    behind = {
        key: longest - wait if longest is not None and wait is not None and len(waits) > 1 else None
        for key, wait in waits.items()
    }
    last = max((seconds for seconds in behind.values() if seconds is not None), default=0.0)
    rows = []
    for key, steps in sorted(by_process.items(), key=lambda item: item[0][1]):
        p50, mean = _middle(steps, "step_seconds_p50"), _middle(steps, "seconds_per_step")
        lag = behind[key]
        share = lag / mean if lag is not None and mean else None
        late = share is not None and lag == last and share > _NOISE and steps[-1]["step"] - steps[0]["step"] >= _FEW
        name, slow = _name(key, by_process), _slow(steps)
        rows.append(Tempo(name, steps[-1]["step"], p50, slow, waits[key], lag, share, late or key in named))
    return rows


def lateness_of(by_process: dict[Key, list[Event]], begin: float, end: float) -> Strips | None:
    """Return rows that say, window by window, how much of a step the others waited for each process."""
    if len(by_process) < 2 or end <= begin:
        return None
    width = (end - begin) / _WINDOWS
    cells: dict[Key, list[int]] = {key: [0] * _WINDOWS for key in by_process}
    windows = {key: _windows(steps, begin, width) for key, steps in by_process.items()}
    for number in range(_WINDOWS):
        waits = {key: _wait(mine[number]) for key, mine in windows.items() if number in mine}
        known = {key: wait for key, wait in waits.items() if wait is not None}
        steps = [s for key in known if (s := _middle(windows[key][number], "seconds_per_step"))]
        if len(known) < 2 or not steps:
            continue
        longest, step = max(known.values()), statistics.median(steps)
        for key, wait in known.items():
            cells[key][number] = sum((longest - wait) / step > bound for bound in _BOUNDS) or 1
    if not any(map(any, cells.values())):
        return None
    order = sorted(by_process, key=lambda key: key[1])
    rows = [Strip(_name(key, by_process), run_lengths(cells[key])) for key in order]
    return Strips("late", LEVELS, end - begin, _WINDOWS, rows)


def _windows(steps: list[Event], begin: float, width: float) -> dict[int, list[Event]]:
    """Return the steps of each window, and with each the step before it, from which it counts."""
    windows: dict[int, list[Event]] = {}
    for before, step in zip([None, *steps], steps, strict=False):
        number = min(_WINDOWS - 1, max(0, int((step["time"] - begin) / width)))
        if number not in windows and before is not None:
            windows[number] = [before]
        windows.setdefault(number, []).append(step)
    return windows


def _wait(steps: list[Event]) -> float | None:
    """Return the seconds of waiting in each step; None if that is not known. What an attempt has counted begins with 0."""
    seconds, count = 0.0, 0
    for before, after in pairwise(steps):
        first, last = finite(before.get("waited")), finite(after.get("waited"))
        if first is None or last is None or after["step"] <= before["step"] or last < first:
            continue
        seconds += last - first
        count += after["step"] - before["step"]
    return seconds / count if count else None


def _middle(steps: list[Event], name: str) -> float | None:
    values = [value for step in steps if (value := finite(step.get(name))) is not None]
    return statistics.median(values) if values else None


def _slow(steps: list[Event]) -> float | None:
    """Return the 95th percentile: of records that stand for one step each over all of them, else the median of theirs."""
    medians = sorted(value for step in steps if (value := finite(step.get("step_seconds_p50"))) is not None)
    typical = _middle(steps, "step_seconds_p95")
    if any(step.get("step_seconds_p95") != step.get("step_seconds_p50") for step in steps) or not medians:
        return typical
    return medians[max(0, math.ceil(0.95 * len(medians)) - 1)]


def _name(key: Key, keys: dict[Key, list[Event]]) -> str:
    host, process = key
    return host if sum(other == host for other, _ in keys) == 1 else f"{host}.{process}"
