"""State of an attempt: of each process while it runs, and of the whole attempt at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from podrun.runtime.contract import Phase, ProgressRecord
from podrun.runtime.events import ErrorEvent
from podrun.runtime.lines import PHASES

from ..agent.base.schema import Lines
from ..pod.fold import fold
from ..rundir import events
from .cause import Failure

TRAINING = (Phase.TRAIN, Phase.EVALUATE, Phase.SAVE)
"""Phases in which a process has steps that are worth a checkpoint."""


@dataclass
class Process:
    """State of one worker process, as its agent reports it. (`run_state.ProcessState` is the state in the run's records.)"""

    host: str
    process: int
    phase: str | None = None
    """Last phase that the process has reported; it stays after the process has ended."""
    step: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    cut_off: bool = False
    """True if it ended after being asked to stop, so its exit code does not prove that its work was done."""
    error: ErrorEvent | None = None
    record: ProgressRecord | None = None
    """Its progress record; None until its agent has sent one, and for most user programs."""
    signs: int = 0
    """How often the process showed that it is alive: number of its events and of the changes of its progress record."""
    age: float = 0.0
    """Age in seconds of the last event or change when it arrived here."""
    state: str = ""
    """State of the process on its host, as `ps` showed it when it was last asked for its stacks."""
    load: float | None = None
    """Number of cores that it used at that time."""
    unread: Lines = field(default_factory=lambda: Lines(events.LIMIT))
    """The beginning of an event whose end has not come yet."""
    warned: set[str] = field(default_factory=set)
    """Topics about which the user was warned, such as damaged progress records."""

    @property
    def joined(self) -> bool:
        return self.phase not in (None, Phase.CONNECT)


_GROUPS = 4  # of processes that did the same, which a report names


def doing(processes: Iterable[Process], besides: Failure) -> str:
    """Return what all processes except the failed one were doing: `host-0: training, step 41; host-[2-3]: evaluating`.

    Returns an empty text for user programs, because they do not report it.
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
    """What the other processes were doing when the cause ended the attempt."""
    interrupted_by: int | None = None
    hurried: bool = False
    """True if the user has interrupted twice, so that no save was waited for."""
    stopped_by: str = ""
    """The `podrun stop` that has interrupted it, with its options, user and machine; empty without one."""
    saved_step: int | None = None
    """Step of the newest reported checkpoint on disk."""
    no_checkpoint: bool = False
    """True if the attempt has looked for a checkpoint on disk and found none."""
    nothing_left: int | None = None
    """Number of steps, if all of them were done before this attempt; otherwise None."""
    left_behind: list[str] = field(default_factory=list)
    over: str = ""
    """Reason why the hosts were taken away during the attempt, which may explain the cause or the interrupt."""
    finished: bool = False
    """True if all processes have finished their work, even if something failed later."""
    unprepared: bool = False
    """True if the hosts could not be prepared, so no agent was started."""
    all_ended_well: bool = False
    """True if every process ended with code 0, by itself or after it was asked to stop."""

    def without_restart(
        self, code: int, failures: Sequence[Failure] = (), interrupted_by: int | None = None
    ) -> Outcome:
        """Return the outcome of the run if no attempt follows this one after all. What was saved and left behind stays in it.

        Args:
            code: exit code of the run.
            failures: why no attempt follows, the cause first.
            interrupted_by: signal by which the user asked to stop.
        """
        return replace(
            self,
            code=code,
            cause=next(iter(failures), None),
            failures=list(failures),
            interrupted_by=interrupted_by,
            unprepared=True,
        )
