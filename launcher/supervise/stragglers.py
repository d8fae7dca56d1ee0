"""PURE: find the process that the others wait for in every step.

All processes end a step at the same moment, so the length of a step does not say who is late, and the clocks of hosts differ.
But a process that comes late to a step waits less for it than others: it is late by the longest waiting of all less its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from podrun.runtime.contract import Beat, Phase

Key = tuple[str, int]
"""A host's name and a process's number."""
_SECONDS, _STEPS = 5.0, 20  # of a window, at least
_SHARE = 0.2  # of a step: what is less is noise
_ALWAYS = 3  # windows in a row


@dataclass(frozen=True)
class Late:
    """A process that is late, in the windows up to now."""

    host: str
    process: int
    behind: float
    """Seconds a step."""
    step_seconds: float
    since: float
    """Time at which the first of the windows began."""
    windows: int = 1

    @property
    def always(self) -> bool:
        """Return True if it is late all the time, rather than once."""
        return self.windows >= _ALWAYS


def latest(first: Mapping[Key, Beat], last: Mapping[Key, Beat], since: float = 0.0) -> Late | None:
    """Return who was late by how much between two looks at the same processes; None if nobody was by more than noise.

    All of them have completed steps in between.
    """
    steps = {key: last[key].completed - beat.completed for key, beat in first.items()}
    waits = {key: (last[key].waiting - beat.waiting) / steps[key] for key, beat in first.items()}
    longest, shortest = max(waits, key=waits.__getitem__), min(waits, key=waits.__getitem__)
    behind = waits[longest] - waits[shortest]
    step_seconds = (_accounted(last[longest]) - _accounted(first[longest])) / steps[longest]
    if behind <= _SHARE * step_seconds:
        return None
    return Late(*shortest, behind, step_seconds, since)


def _accounted(beat: Beat) -> float:
    """Return the seconds of steps so far. Of one who waits that is nearly all; evaluations and saves do not count."""
    return beat.data + beat.dispatch + beat.waiting


class Stragglers:
    """Look at the beats of all processes in one window of steps after the other."""

    def __init__(self) -> None:
        self.late: Late | None = None
        """Who was late in the last complete window."""
        self._first: dict[Key, Beat] = {}
        self._began = 0.0

    def see(self, beats: Mapping[Key, Beat], now: float) -> bool:
        """Look at the beats of all processes that run. Return True if that ends a window, after which `late` is new."""
        if not all(beat.phase == Phase.TRAIN for beat in beats.values()):
            return False
        if beats.keys() != self._first.keys():
            self._first, self._began = dict(beats), now
            return False
        if now - self._began < _SECONDS or len(beats) < 2:
            return False
        if any(beat.completed - self._first[key].completed < _STEPS for key, beat in beats.items()):
            return False
        late = latest(self._first, beats, self._began)
        before = self.late
        if late and before and (late.host, late.process) == (before.host, before.process):
            late = Late(late.host, late.process, late.behind, late.step_seconds, before.since, before.windows + 1)
        self.late = late
        self._first, self._began = dict(beats), now
        return True
