"""What is known of an attempt: of each process while it goes on, of all at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from podrun.runtime.contract import Event, Phase

from .cause import Failure


@dataclass
class Process:
    """What is known of one worker."""

    host: str
    process: int
    phase: str | None = None
    step: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    cut_off: bool = False
    """It ended after it had been asked to stop, so its exit code does not say that its work was done."""
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


@dataclass
class Outcome:
    """How an attempt ended."""

    code: int
    cause: Failure | None = None
    failures: list[Failure] = field(default_factory=list)
    interrupted_by: int | None = None
    saved_step: int | None = None
    """Step of the newest checkpoint, as far as the attempt has said."""
    no_checkpoint: bool = False
    """The attempt has looked for a checkpoint and has seen none."""
    left_behind: list[str] = field(default_factory=list)
    finished: bool = False
    """All processes have done what they were to do, whatever went wrong after that."""
    unprepared: bool = False
    """The hosts were not ready, so no agent was started."""

    def without_restart(
        self, code: int, failures: Sequence[Failure] = (), interrupted_by: int | None = None
    ) -> Outcome:
        """Return how the run ends if no attempt follows this one after all: what it saved and left behind is still true."""
        return replace(
            self,
            code=code,
            cause=next(iter(failures), None),
            failures=list(failures),
            interrupted_by=interrupted_by,
            unprepared=True,
        )
