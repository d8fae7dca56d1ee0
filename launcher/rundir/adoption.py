"""What a supervisor that is gone has left on record, from which another goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Adoption:
    """What another supervisor, which is gone, has left of the attempt that is going on."""

    offsets: dict[str, dict[str, int]]
    """By host: bytes of each stream that are in the logs."""
    events: dict[tuple[str, int], int]
    """By host and process: events that are on record."""
    started: bool
    """The processes have been started."""
    phases: frozenset[tuple[str, str, int | None]] = frozenset()
    """Host, phase and, if it is about one, process: what is on record of the start."""
