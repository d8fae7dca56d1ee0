"""Records of a running attempt, for a supervisor that takes it over."""

from __future__ import annotations

from typing import NamedTuple

from .events import HostEvent


class Adoption(NamedTuple):
    """Records of the running attempt that a lost supervisor has left."""

    offsets: dict[str, dict[str, int]]
    """Bytes of each stream that are in the logs, by host."""
    events: dict[tuple[str, int], int]
    """Number of recorded events, by host and process."""
    started: bool
    """True if the processes have been started."""
    phases: frozenset[tuple[str, str, int | None]] = frozenset()
    """Recorded phases of the start: (host, phase, process), without a process for phases of the host."""


class Reported:
    """What a lost supervisor has reported. Agents repeat all of it to the supervisor that takes over."""

    def __init__(self, adoption: Adoption) -> None:
        self._phases = adoption.phases
        self._events = dict(adoption.events)

    def has_phase(self, event: HostEvent) -> bool:
        """Return whether this phase of the start is on record."""
        return (event["host"], event["phase"], event.get("process")) in self._phases

    def has_next_event(self, process: tuple[str, int]) -> bool:
        """Return whether the next event of a process is on record. Each call is for the event after the one before."""
        left = self._events.get(process, 0)
        self._events[process] = max(0, left - 1)
        return left > 0
