"""The history of a run's attempts, for the restart policy.

Restart budgets belong to the run, so a new supervisor restores it.
"""

from __future__ import annotations

from collections.abc import Iterable

from podrun.runtime.contract import ExitCode, Phase
from podrun.runtime.events import EventKind

from ..attempt.cause import LAUNCHER, FailureKind
from ..attempt.outcome import Outcome
from ..plan.plan import LaunchPlan
from ..rundir.events import Event, RestartEvent
from .policy import Attempt, Budget, Ending

PREEMPTIONS = 100
"""Default number of restarts after preemptions, if the job asks for restarts."""
_BEFORE_TRAINING = (Phase.CONNECT, Phase.SETUP, Phase.RESTORE, Phase.COMPILE)


def budget_of(plan: LaunchPlan) -> Budget:
    """Return how many restarts a job allows."""
    failures, preemptions = plan.launch.max_restarts, plan.launch.max_preemptions
    return Budget(failures, (PREEMPTIONS if failures else 0) if preemptions is None else preemptions)


class AttemptHistory:
    """An observer that records the progress of an attempt, with the attempts before it."""

    def __init__(self) -> None:
        self.past: list[Attempt] = []
        """Attempts that were followed by another one."""
        self.resized = False
        """podrun itself has stopped the attempt, to use hosts that are back."""
        self._started: float | None = None
        self._ended: float | None = None
        self._uses_loop = False
        self._trained = False
        self._saved: int | None = None

    def event(self, event: Event) -> None:
        if event["event"] == EventKind.START:
            self._begin()
        elif event["event"] == EventKind.HOST and event["phase"] == "started":
            self._started = self._started or event["time"]
        elif event["event"] == EventKind.EXIT:
            self._ended = self._ended or event["time"]
        elif event["event"] == EventKind.PHASE and event["phase"] not in (Phase.CONNECT, Phase.SETUP):
            self._uses_loop = True
            self._trained |= event["phase"] not in _BEFORE_TRAINING
        elif event["event"] == EventKind.STEP:
            self._uses_loop = self._trained = True
        elif event["event"] in (EventKind.CHECKPOINT, EventKind.RESUME):
            self._saved = event["step"]

    def _begin(self) -> None:
        self._started = self._ended = self._saved = None
        self._uses_loop = self._trained = self.resized = False

    def replay(self, events: Iterable[Event]) -> None:
        """Take over what another supervisor of this run has recorded."""
        for event in events:
            self.event(event)
            if event["event"] == EventKind.RESTART and event["ending"] in list(Ending):
                self.past.append(_recorded(event))

    def attempt(self, outcome: Outcome, plan: LaunchPlan, time: float) -> Attempt:
        """Return what the attempt achieved, and how it ended."""
        cause = outcome.cause
        return Attempt(
            ending=Ending.RESIZED
            if self.resized and cause is None and not outcome.finished
            else _ending(outcome, plan),
            code=int(outcome.code),
            what=cause.what if cause else "",
            trained=self._trained,
            saved=self._saved,
            seconds=max(0.0, (self._ended or time) - self._started) if self._started else 0.0,
            silent_program=plan.is_program and not self._uses_loop,
        )


def _ending(outcome: Outcome, plan: LaunchPlan) -> Ending:
    cause = outcome.cause
    if outcome.finished or (cause is None and outcome.interrupted_by is None):
        return Ending.DONE
    if cause is None:
        return Ending.STOPPED
    if cause.host == LAUNCHER:
        return Ending.ASLEEP if cause.kind is FailureKind.UNHEARD else Ending.LAUNCHER
    if outcome.unprepared:
        return Ending.UNPREPARED
    # the exit code 2 of a program's own may mean anything, but podrun's own errors, which workers report, mean a mistake
    if outcome.code == ExitCode.BAD_CONFIG and not (plan.is_program and cause.kind is FailureKind.EXITED):
        return Ending.CONFIG
    if cause.kind is FailureKind.ASKED:
        return Ending.PREEMPTED
    return Ending.LOST if cause.process is None else Ending.FAILED


def restart_event(attempt: Attempt, message: str, time: float, delay: float = 0.0) -> RestartEvent:
    """Return the event that records an attempt which another one follows, after a delay in seconds."""
    return {
        "event": EventKind.RESTART,
        "time": time,
        "message": message,
        "ending": attempt.ending,
        "code": attempt.code,
        "what": attempt.what,
        "trained": attempt.trained,
        "saved": attempt.saved,
        "seconds": attempt.seconds,
        "silent_program": attempt.silent_program,
        "delay": delay,
    }


def _recorded(event: RestartEvent) -> Attempt:
    return Attempt(
        ending=Ending(event["ending"]),
        code=event["code"],
        what=event["what"],
        trained=event["trained"],
        saved=event["saved"],
        seconds=event["seconds"],
        silent_program=event["silent_program"],
    )
