"""State of an attempt: of each process while it runs, and of all at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from podrun.runtime.contract import Beat, Event, Phase

from .cause import Failure


@dataclass
class Process:
    """State of one worker process, as its agent reports it to this supervisor; the record's is `run_state.ProcessState`."""

    host: str
    process: int
    phase: str | None = None
    """Last phase that it has reported itself, also after its end."""
    step: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    cut_off: bool = False
    """True if it ended after being asked to stop, so its exit code does not prove that its work was done."""
    error: Event | None = None
    beat: Beat | None = None
    """Where it is, by its beat file; None until its agent has sent that, and for most user programs."""
    signs: int = 0
    """Counts its signs of life: events and beats, and the output of a user program."""
    state: str = ""
    """State of the process on its host, as `ps` shows it, when it was last asked for its stacks."""
    load: float | None = None
    """Cores that it used then."""

    @property
    def saving(self) -> bool:
        return self.phase == Phase.SAVE

    @property
    def training(self) -> bool:
        """Return True if it has steps that are worth a checkpoint."""
        return self.phase in (Phase.TRAIN, Phase.EVALUATE, Phase.SAVE)

    @property
    def joined(self) -> bool:
        return self.phase not in (None, Phase.CONNECT)


@dataclass
class Outcome:
    """Outcome of an attempt."""

    code: int
    cause: Failure | None = None
    failures: list[Failure] = field(default_factory=list)
    interrupted_by: int | None = None
    saved_step: int | None = None
    """Step of the newest reported checkpoint."""
    no_checkpoint: bool = False
    """True if the attempt has looked for a checkpoint and found none."""
    left_behind: list[str] = field(default_factory=list)
    finished: bool = False
    """True if all processes have finished their work, even if something failed later."""
    unprepared: bool = False
    """True if the hosts were not ready, so no agent was started."""

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
