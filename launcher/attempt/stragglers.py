"""PURE: name the process that the others wait for in every step, if there is one.

This is the only rule by which podrun names a straggler. The result becomes an event, which the live view, `status` and
the page show. Clocks of hosts differ, so the rule compares how long each process waits (`rundir/lateness.py`). On a
machine with more work than cores, some process is late in any window, by chance; so a process is named if it is late in
several windows in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from podrun.runtime.contract import Phase, ProgressRecord

from ..rundir.lateness import behind_others

Key = tuple[str, int]
"""A host's name and a process's number."""
_SECONDS, _STEPS = 5.0, 20  # of a window, at least
_SHARE = 0.2  # of a step: what is less is noise
_LEAST = 0.005  # seconds of a step: the process that leads writes records, for some milliseconds on a busy machine
_IN_A_ROW = 3  # windows in which a process must be late


class Late(NamedTuple):
    """A process that keeps the others waiting, as measured in the last windows."""

    host: str
    process: int
    behind: float
    """Seconds per step that the others waited for it in the last window."""
    step_seconds: float
    since: float
    """Time at which the first of the windows began."""


def late_in_window(
    first: Mapping[Key, ProgressRecord], last: Mapping[Key, ProgressRecord]
) -> tuple[dict[Key, float], float]:
    """Compare the progress records of the same processes at the two ends of a window, in which all have completed steps.

    Returns:
        How many seconds per step each late process was late, and the seconds of a step.
    """
    steps = {key: last[key].completed - record.completed for key, record in first.items()}
    waits = {key: (last[key].waiting - record.waiting) / steps[key] for key, record in first.items()}
    longest = max(waits, key=waits.__getitem__)
    step_seconds = (_accounted(last[longest]) - _accounted(first[longest])) / steps[longest]
    noise = max(_SHARE * step_seconds, _LEAST)
    return {key: behind for key, behind in behind_others(waits).items() if behind > noise}, step_seconds


def _accounted(record: ProgressRecord) -> float:
    """Return the seconds of its steps so far, without evaluations and saves."""
    return record.data + record.dispatch + record.waiting


class Stragglers:
    """Compares the progress records of all processes in successive windows of steps."""

    def __init__(self) -> None:
        self.late: Late | None = None
        """The process that was late in each of the last windows, or None. If there are several, the one named first."""
        self._first: dict[Key, ProgressRecord] = {}
        self._began = 0.0
        self._streaks: dict[Key, tuple[float, int]] = {}
        """For each late process: the time at which its uninterrupted row of late windows began, and their number."""

    def see(self, records: Mapping[Key, ProgressRecord], now: float) -> bool:
        """Process the progress records of all running processes. Return True if that ends a window, which updates `late`."""
        if not all(record.phase == Phase.TRAIN for record in records.values()):
            return False
        if records.keys() != self._first.keys():
            self._first, self._began = dict(records), now
            return False
        if now - self._began < _SECONDS or len(records) < 2:
            return False
        if any(record.completed - self._first[key].completed < _STEPS for key, record in records.items()):
            return False
        behind, step_seconds = late_in_window(self._first, records)
        streaks = {key: self._streaks.get(key, (self._began, 0)) for key in behind}
        self._streaks = {key: (since, windows + 1) for key, (since, windows) in streaks.items()}
        self.late = self._named(behind, step_seconds)
        self._first, self._began = dict(records), now
        return True

    def _named(self, behind: Mapping[Key, float], step_seconds: float) -> Late | None:
        always = [key for key in behind if self._streaks[key][1] >= _IN_A_ROW]
        if not always:
            return None
        before = (self.late.host, self.late.process) if self.late else None
        named = before if before in always else max(always, key=behind.__getitem__)
        return Late(*named, behind[named], step_seconds, self._streaks[named][0])
