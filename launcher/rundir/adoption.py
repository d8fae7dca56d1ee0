"""Records of a running attempt, for a supervisor that takes it over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Adoption:
    """Records of the running attempt that a lost supervisor has left."""

    offsets: dict[str, dict[str, int]]
    """Bytes of each stream that are in the logs, by host."""
    events: dict[tuple[str, int], int]
    """Number of recorded events, by host and process."""
    started: bool
    """True if the processes have been started."""
    phases: frozenset[tuple[str, str, int | None]] = frozenset()
    """Recorded phases of the start: (host, phase, process), without a process for phases of the host."""
