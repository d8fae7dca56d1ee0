"""Declare the messages that change the state of an attempt, and the orders that follow from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import NamedTuple

from ..agent.base.to_agent import ToAgent
from ..remote.delivery import Delivered
from ..rundir.events import Event
from .cause import Failure


class Moment(NamedTuple):
    """The time of a message, on three clocks of the launcher."""

    awake: float
    """Seconds since the attempt began, without those in which the launcher was suspended."""
    monotonic: float
    wall: float


class Step(Enum):
    """A step of the supervisor."""

    NOT_READY = auto()  # some agents were not ready in time
    PROBE = auto()  # all are: every other host tests whether it reaches the coordinator
    GO = auto()  # the workers start
    NOT_JOINED = auto()  # some processes did not join in time
    DUMP = auto()  # all processes print their stacks
    INTERRUPTED = auto()  # the user wants to stop
    INTERRUPTED_AGAIN = auto()  # the user wants to stop at once


class Opened(NamedTuple):
    """The start of a host's agent has succeeded or failed."""

    host: str
    error: str | None
    """Reason why the agent could not be started; None if it was."""


class Received(NamedTuple):
    """A host's session has delivered a frame."""

    host: str
    frame: Delivered


class LogFailed(NamedTuple):
    """The output of a host could not be written to its log."""

    host: str
    reason: str


class Tick(NamedTuple):
    """Some time has passed since the last look at the progress of all processes."""

    answering: Collection[str]
    """Hosts that answer."""
    outputs: Mapping[tuple[str, int], int]
    """Number of pieces of output of each process of a user program. More pieces show that the process is alive."""


class Failed(NamedTuple):
    """The supervisor has found a failure."""

    failure: Failure


class StopBegun(NamedTuple):
    """All workers are asked to stop from now on."""

    by_user: bool
    unopened: Collection[str]
    """Hosts whose agent will not be started any more."""


class StopEnded(NamedTuple):
    """The stop is over: the supervisor no longer waits for any host."""

    by_user: bool
    silent: Mapping[str, tuple[float, str]]
    """Hosts that do not answer: seconds of silence, and why they could not be reached again."""


Message = Step | Opened | Received | LogFailed | Tick | Failed | StopBegun | StopEnded


class Send(NamedTuple):
    """Send a frame."""

    frame: ToAgent
    host: str | None = None
    """The host; None: all hosts that can be reached."""


class StartAgent(NamedTuple):
    """Start another agent on a host whose agent has ended."""

    host: str


Effect = Event | Send | StartAgent
"""An event to report, or an order to carry out. The time of an event is set when it is reported."""
