"""State of an attempt: of each process while it runs, and of all at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from podrun.runtime.contract import Phase, ProgressRecord
from podrun.runtime.events import ErrorEvent
from podrun.runtime.lines import PHASES

from ..pod.fold import fold
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
    error: ErrorEvent | None = None
    record: ProgressRecord | None = None
    """Its progress record; None until its agent has sent one, and for most user programs."""
    signs: int = 0
    """Number of its signs of life: events, and changes of its progress record."""
    age: float = 0.0
    """Seconds that the last of them was old when it came here."""
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


_GROUPS = 4  # of processes that did the same, which a report names


def doing(processes: Iterable[Process], besides: Failure) -> str:
    """Return what all processes but the one that failed were doing: `host-0: training, step 41; host-[2-3]: evaluating`.

    Empty for user programs, which do not say it.
    """
    groups: dict[str, list[str]] = {}
    for p in processes:
        failed = p.host == besides.host and besides.process in (None, p.process)
        if p.phase is None or failed:
            continue
        step = p.record.arrived if p.record else p.step
        groups.setdefault(PHASES.get(p.phase, p.phase) + (f", step {step}" if step else ""), []).append(p.host)
    rows = [f"{fold(hosts)}: {what}" for what, hosts in groups.items()]
    return "; ".join(rows[:_GROUPS]) + " ..." * (len(rows) > _GROUPS)


@dataclass
class Outcome:
    """Outcome of an attempt."""

    code: int
    cause: Failure | None = None
    failures: list[Failure] = field(default_factory=list)
    others: str = ""
    """Work of the other processes when the cause ended the attempt."""
    interrupted_by: int | None = None
    saved_step: int | None = None
    """Step of the newest reported checkpoint."""
    no_checkpoint: bool = False
    """True if the attempt has looked for a checkpoint and found none."""
    left_behind: list[str] = field(default_factory=list)
    over: str = ""
    """Reason why the hosts were taken away meanwhile: it may be behind the cause, or the interrupt."""
    finished: bool = False
    """True if all processes have finished their work, even if something failed later."""
    unprepared: bool = False
    """True if the hosts were not ready, so no agent was started."""
    all_ended_well: bool = False
    """True if every process has ended with code 0, by itself or when it was asked to."""

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
