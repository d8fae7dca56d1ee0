"""What is known of an attempt: of each process while it goes on, of all at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from podrun.runtime.contract import Event, Phase

from .failure import Failure


@dataclass
class Process:
    """What is known of one worker."""

    host: str
    process: int
    phase: str | None = None
    step: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    error: Event | None = None

    @property
    def saving(self) -> bool:
        return self.phase == Phase.SAVE

    @property
    def training(self) -> bool:
        """It has steps that are worth a checkpoint."""
        return self.phase in (Phase.TRAIN, Phase.EVALUATE, Phase.SAVE)

    @property
    def joined(self) -> bool:
        return self.phase not in (None, Phase.CONNECT)


@dataclass(frozen=True)
class Adoption:
    """What another supervisor, which is gone, has left of the attempt that is going on."""

    offsets: dict[str, dict[str, int]]
    """By host: bytes of each stream that are in the logs."""
    events: dict[tuple[str, int], int]
    """By host and process: events that are on record."""
    started: bool
    """The processes have been started."""


@dataclass
class Outcome:
    """How an attempt ended."""

    code: int
    cause: Failure | None = None
    failures: list[Failure] = field(default_factory=list)
    interrupted_by: int | None = None
    saved_step: int | None = None
    left_behind: list[str] = field(default_factory=list)
    unprepared: bool = False
    """The hosts were not ready, so no agent was started."""
