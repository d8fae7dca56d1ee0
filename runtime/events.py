"""Declare the events that a worker reports: JSON objects, one per line, with their kind under `event`.

Standard library only: the launcher imports this module where JAX is not installed. It derives its checks from the
declarations, so the annotations of this file must not be strings.
"""

import math
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar, cast

from .contract import ErrorKind


class EventKind(StrEnum):
    """The kinds of events: of workers, declared here, and of the launcher, declared in `launcher/rundir/events.py`."""

    START = "start"
    HOST = "host"
    PHASE = "phase"
    STEP = "step"
    EPOCH = "epoch"
    EVAL = "eval"
    EVALUATED = "evaluated"
    VERIFIED = "verified"
    REPLAYED = "replayed"
    CHECKPOINT = "checkpoint"
    RESUME = "resume"
    TEXT = "text"
    SAMPLE = "sample"
    NOTE = "note"
    PROFILE = "profile"
    ERROR = "error"
    SIGNAL = "signal"
    LATE = "late"
    USAGE = "usage"
    EXIT = "exit"
    RESTART = "restart"
    END = "end"


Count = Annotated[int, "0 or more"]
Moment = Annotated[float, "seconds since 1970"]
Metric = Annotated[float, "also NaN and infinity"]
Metrics = Mapping[str, float | list[float] | list[dict[str, float]]]
"""Numbers by name. For an ensemble also lists with an entry for each member, which only metrics.jsonl gets."""


class OfWorker(TypedDict, total=False):
    """Fields that are added to every event of a worker before it is recorded. Every recorded event has them."""

    time: Moment
    """Set when the event is reported."""
    host: str
    """Set by the launcher, as `process` is."""
    process: Count


class PhaseEvent(OfWorker):
    """The process enters a phase."""

    event: Literal[EventKind.PHASE]
    phase: str
    """A `Phase`, or one of another version."""


class StepEvent(OfWorker):
    """A step is complete. Any other fields are metrics, of the model or of a user program."""

    event: Literal[EventKind.STEP]
    step: Count
    steps: Count | None
    """Number of steps of the run; None if it is unknown."""
    loss: NotRequired[Metric]
    accuracy: NotRequired[Metric]
    tokens_per_second: NotRequired[Metric]
    examples_per_second: NotRequired[Metric]
    elapsed: NotRequired[float]
    seconds_left: NotRequired[float | None]
    waited: NotRequired[float]
    waited_for_data: NotRequired[float]
    shown: NotRequired[list[str]]
    """Names of the metrics that a line about the step has; without it `SHOWN`."""


class EpochEvent(OfWorker):
    """An epoch is complete. Other fields are the means of the metrics of its steps."""

    event: Literal[EventKind.EPOCH]
    step: Count
    epoch: Count
    epochs: float


class EvalEvent(OfWorker):
    """An evaluation is complete. Other fields are its metrics."""

    event: Literal[EventKind.EVAL]
    step: Count


class EvaluatedEvent(OfWorker):
    """A checkpoint was evaluated by `podrun evaluate`. The fields are those of `queries.EvaluateAnswer`."""

    event: Literal[EventKind.EVALUATED]
    about: str
    step: Count
    weights: str
    data: str
    is_of_run: bool
    examples: Count
    tokens: Count | None
    metrics: dict[str, Metric | list[Any]]


class VerifiedEvent(OfWorker):
    """All devices agreed bit for bit after a step (`launch.verify_every`). `podrun replay` compares with it."""

    event: Literal[EventKind.VERIFIED]
    step: Count
    state: str
    """Digests of 8 bytes in base64: of each parameter, then of the rest of the state."""
    gradients: str
    """Digests of the gradients of the same examples, of each parameter that is trained; empty if they are not compared."""
    setting: str
    """Version of JAX, devices and number of processes: with others, numbers may be rounded in another way."""
    one_device: NotRequired[str]
    """One digest of the state of a device, as in `ReplayedEvent`; missing if devices hold different parts of the state."""


class ReplayedEvent(OfWorker):
    """A step was computed again by `podrun replay`. The first fields are those of `VerifiedEvent`."""

    event: Literal[EventKind.REPLAYED]
    step: Count
    state: str
    gradients: str
    setting: str
    repetition: Count
    """1 or more."""
    processes: list[Count]
    """The process of each device."""
    groups: list[Count]
    """The group of each device. Devices of a group hold the same parts of the state."""
    states: list[str]
    """One digest of the state for each device."""
    sums: list[str]
    """One digest of all gradients for each device."""
    odd: list[Count]
    """How often each device computed other gradients than most, of several times from the same state and examples; none if
    each device repeats its own result."""
    differing: list[str]
    """Names of the first arrays in which devices differ."""
    names: list[str]
    """Names of the parameters; none if an earlier event has them, or if there are too many."""


class CheckpointEvent(OfWorker):
    """A checkpoint is complete on disk."""

    event: Literal[EventKind.CHECKPOINT]
    step: Count
    next: NotRequired[Count]
    """Step of the next one, if the job has `checkpoint.every: auto`."""


class ResumeEvent(OfWorker):
    """The run goes on from a checkpoint."""

    event: Literal[EventKind.RESUME]
    step: Count
    memory: NotRequired[str]
    """Where the checkpoint was, if it was in memory: `the memory of 3 hosts`."""
    disk: NotRequired[Count]
    """Step of the newest checkpoint on disk, if there is one and the run goes on from one in memory."""


class TextEvent(OfWorker):
    """Text was sampled from the model."""

    event: Literal[EventKind.TEXT]
    text: str


class _Timed(TypedDict, total=False):
    time: Moment
    """Set when the event is reported, and required in the record."""


class SampleEvent(OfWorker):
    """Something to look at: what a model has written or drawn, or how numbers are distributed."""

    event: Literal[EventKind.SAMPLE]
    step: Count
    name: str
    form: str
    """`text`, `table`, `image` or `histogram`."""
    content: str
    """A text; an image as base64 of a PNG; JSON of a table, a list of rows of texts of which the first is the head; or JSON
    of a histogram, {"edges": [...], "counts": [...]}."""


class NoteEvent(_Timed):
    """A message for the user."""

    event: Literal[EventKind.NOTE]
    host: NotRequired[str]
    """Given for a worker's note, like `process`. The launcher has notes as well."""
    process: NotRequired[Count]
    message: str
    injected: NotRequired[str]
    """The fault that was injected."""
    sent: NotRequired[dict[str, list[str]]]
    """Files that were sent to each host."""
    one_disk: NotRequired[bool]
    """True: the run's results are on the disk of this process's host, and the other hosts do not see them."""


class ProfileEvent(OfWorker):
    """A profile has begun, is complete or has failed."""

    event: Literal[EventKind.PROFILE]
    id: str
    state: str
    step: Count
    """First step that was asked for."""
    last: Count
    error: str
    """Empty unless it has failed."""


class ErrorEvent(OfWorker):
    """The process fails."""

    event: Literal[EventKind.ERROR]
    kind: ErrorKind
    message: str
    step: NotRequired[Count | None]
    code: NotRequired[int]
    traceback: NotRequired[str]
    program: NotRequired[bool]
    """The failure is that of a user program."""


class SignalEvent(OfWorker):
    """SIGTERM was sent to this process itself, not to another process of the pod."""

    event: Literal[EventKind.SIGNAL]
    number: Count


WorkerEvent = (
    PhaseEvent
    | StepEvent
    | EpochEvent
    | EvalEvent
    | EvaluatedEvent
    | VerifiedEvent
    | ReplayedEvent
    | CheckpointEvent
    | ResumeEvent
    | TextEvent
    | SampleEvent
    | NoteEvent
    | ProfileEvent
    | ErrorEvent
    | SignalEvent
)

SHOWN = ("loss", "accuracy")
"""Names of the metrics that a line about a step has, unless its event has others."""

FIELDS = frozenset(
    ("event", "time", "host", "process", "step", "steps", "kind", "elapsed", "seconds_left", "shown")
) | {"waited", "waited_for_data"}
"""Fields of events of steps and of records in metrics.jsonl: no metric may have such a name."""
_COUNTS = frozenset(("epochs", "seconds"))

E = TypeVar("E")


def metrics_of(fields: Mapping[str, object]) -> dict[str, float]:
    """Return the metrics of an event, or of a record in metrics.jsonl: all numbers that are not among its standard fields."""
    return {
        name: as_float(value)
        for name, value in fields.items()
        if name not in FIELDS | _COUNTS and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def as_float(number: int | float) -> float:
    """Return a number as a float: infinity for a whole number that is larger than any float."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def stamped(event: E) -> E:
    """Return the event with the present time."""
    fields = dict(cast("dict[str, object]", event))
    return cast(E, {"event": fields.pop("event"), "time": time.time(), **fields})
