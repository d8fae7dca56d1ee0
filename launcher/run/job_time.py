"""The interface of a run's job in a queue: whether the run continues in another job, and where."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ..attempt.outcome import Outcome
from ..pod.pod import Pod
from .policy import Attempt, Ending


class Onward(NamedTuple):
    """A run that continues in another job, or in the same one after the queue requeued it."""

    ending: Ending
    why: str
    """Reason why the run leaves this job, as a phrase."""
    words: str
    """Message for the user."""
    excluded: str = ""
    """Nodes to exclude, in the queue's notation."""


class JobTime(ABC):
    """The time of a run in its job, and how the run continues when that time is over."""

    signal: int
    """Signal that the queue sends shortly before the time limit."""

    @abstractmethod
    def after(self, outcome: Outcome, attempts: Sequence[Attempt], pod: Pod) -> Onward | None:
        """Return how the run continues in another job after its last attempt; None if the run ends."""

    @abstractmethod
    def advice(self, outcome: Outcome, pod: Pod) -> str | None:
        """Return a message that says how to get a job without the node that failed; None if no node failed."""
