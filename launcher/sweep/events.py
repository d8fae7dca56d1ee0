"""Declare the events of a sweep: the lines of its journal sweep.jsonl, and what `podrun sweep --json` prints.

The checks of the journal are derived from these declarations, so their annotations must not be strings.
"""

from enum import StrEnum
from typing import Any, Literal, NotRequired, TypedDict, cast, get_args

from podrun.runtime.events import Count, Moment

from ..rundir.events import Finite, check_event, checks_of, load_event

VERSION = 1
"""Version of the journal."""


class Kind(StrEnum):
    """Kind of an event of a sweep."""

    SWEEP = "sweep"
    RESUME = "resume"
    TRIAL = "trial"
    START = "start"
    DONE = "done"
    RUNG = "rung"
    PROMOTE = "promote"
    PRUNE = "prune"
    FAIL = "fail"
    STOP = "stop"
    END = "end"


class _Event(TypedDict):
    time: Moment
    """Time at which it was recorded, in seconds since 1970."""
    elapsed: NotRequired[Finite]
    """Seconds since this call of the command began, by a clock that cannot be set; absent in older journals."""


class SweepEvent(_Event):
    """A sweep begins. It is the first line of its journal."""

    event: Literal[Kind.SWEEP]
    version: Count
    """Version of the journal's format."""
    name: str
    """Name of the sweep, which its runs have in theirs."""
    file: dict[str, Any]
    """The content of sweep.yaml, with all defaults."""
    job: dict[str, Any]
    """The job with the first values of the space, or the words of the program."""
    slice: str
    """The slice of a trial: the whole pod, or its part."""
    transport: str
    """How its hosts are reached, such as `local` or `ssh`."""
    parts: list[list[str]]
    """The hosts of each part of the pod; as many trials run at once."""
    folder: str
    """The folder of the trials' workdirs."""


class ResumeEvent(_Event):
    """Another call of the command goes on with the sweep."""

    event: Literal[Kind.RESUME]
    file: dict[str, Any]
    """The content of sweep.yaml now: budget and retries may have changed."""
    last: NotRequired[Moment]
    """Time of the last event of the runs that the call before has left; absent if it left none."""


class TrialEvent(_Event):
    """The values of a trial are chosen. It comes before the trial's first start."""

    event: Literal[Kind.TRIAL]
    trial: Count
    """Number of the trial, from 0."""
    values: dict[str, Any]
    """The value of each key of the space."""


class StartEvent(_Event):
    """A run of a trial starts. A trial has another run after a failure, and after the sweep was resumed."""

    event: Literal[Kind.START]
    trial: Count
    """Number of the trial."""
    run: str
    """Id of the run, for `podrun status`, `logs`, `report` and `pull`."""
    hosts: list[str]
    """The hosts that it runs on."""
    home: str
    """The folder of podrun's files that has its record, as PODRUN_HOME says."""
    machine: str
    """Name of the machine whose podrun supervises it."""
    until: NotRequired[Count]
    """Step of the rung at which the trial pauses; absent without early stopping, and if it is trained to its last step."""


class DoneEvent(_Event):
    """A trial is done."""

    event: Literal[Kind.DONE]
    trial: Count
    """Number of the trial."""
    run: str
    """Id of the run."""
    metric: str
    """Full name of the metric: `min loss` is about the validation loss, or without evaluations about the training loss."""
    value: Finite
    """Its last value."""
    is_best: bool
    """True if it is the best of all trials so far."""


class RungEvent(_Event):
    """A trial has reached a rung of early stopping: its run has ended there with a checkpoint, and the trial pauses."""

    event: Literal[Kind.RUNG]
    trial: Count
    """Number of the trial."""
    run: str
    """Id of the run."""
    step: Count
    """Step of the rung."""
    metric: str
    """Full name of the metric, as in `done`."""
    value: Finite
    """Its last value, by which the trial is compared with the others at this rung."""


class PromoteEvent(_Event):
    """A paused trial goes on from its rung."""

    event: Literal[Kind.PROMOTE]
    trial: Count
    """Number of the trial."""
    step: Count
    """Step of the next rung, or the last step of the job."""


class PruneEvent(_Event):
    """The sweep is complete, and a trial stays at its rung: it was stopped early."""

    event: Literal[Kind.PRUNE]
    trial: Count
    """Number of the trial."""
    step: Count
    """Step of the rung."""


class FailEvent(_Event):
    """A run of a trial has failed, or has not reported the metric."""

    event: Literal[Kind.FAIL]
    trial: Count
    """Number of the trial."""
    run: str
    """Empty if its values were refused before it started."""
    code: Count
    """Exit code of the run; 0 if only the metric is missing."""
    reason: str
    """The first cause."""
    retry: bool
    """True if the trial is started again; otherwise it counts as failed."""


class StopEvent(_Event):
    """A run of a trial was stopped together with the sweep. The trial goes on from its checkpoint in the next call."""

    event: Literal[Kind.STOP]
    trial: Count
    """Number of the trial."""
    run: str
    """Id of the run."""
    reason: str
    """Reason why the run has ended."""


class EndEvent(_Event):
    """The command ends. Without `is_complete`, the same command goes on with the sweep."""

    event: Literal[Kind.END]
    code: Count
    """Exit code of the command."""
    is_complete: bool
    """True if no trial is left."""
    done: Count
    """Number of trials that are done."""
    failed: Count
    """Number of trials that have failed."""
    pruned: NotRequired[Count]
    """Number of trials that were stopped early."""
    best: Count | None
    """Number of the best trial; null without one. One that was stopped early is the best only if no trial is done."""
    value: NotRequired[Finite | None]
    """Its value of the metric."""
    message: str
    """The last line for people."""


Event = (
    SweepEvent
    | ResumeEvent
    | TrialEvent
    | StartEvent
    | DoneEvent
    | RungEvent
    | PromoteEvent
    | PruneEvent
    | FailEvent
    | StopEvent
    | EndEvent
)
EVENTS = get_args(Event)
_CHECKS = checks_of(Event)


def parse(line: bytes) -> Event:
    """Return the event in a line of a journal. Raises Malformed."""
    event = load_event(line)
    check_event(_CHECKS, event)
    return cast(Event, event)
