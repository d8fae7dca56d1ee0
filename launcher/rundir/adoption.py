"""State of an attempt that another supervisor takes over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Adoption:
    """Records that a lost supervisor has left of the running attempt."""

    offsets: dict[str, dict[str, int]]
    """Bytes of each stream that are in the logs, by host."""
    events: dict[tuple[str, int], int]
    """Number of recorded events, by host and process."""
    started: bool
    """True if the processes have been started."""
    phases: frozenset[tuple[str, str, int | None]] = frozenset()
    """Recorded events of the start: host, phase, and process if the event is about one."""
