"""The interface of the job of a queue that a run is in: whether the run goes on in another job, and where."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ..attempt.outcome import Outcome
from ..pod.pod import Pod
from .policy import Attempt, Ending


@dataclass(frozen=True)
class Onward:
    """A run that goes on in another job, or in the same one after it was put back into the queue."""

    ending: Ending
    why: str
    """Reason for not going on in this job, as a phrase."""
    words: str
    """Message for the user."""
    excluded: str = ""
    """Names of the nodes that the job is not to get again, as the queue takes them."""


class JobTime(ABC):
    """The time that a run has in its job, and what follows it."""

    signal: int
    """Signal by which the queue says that the time is nearly up."""

    @abstractmethod
    def after(self, outcome: Outcome, attempts: Sequence[Attempt], pod: Pod) -> Onward | None:
        """Return how the run goes on after the last of its attempts; None if it ends with that."""

    @abstractmethod
    def advice(self, outcome: Outcome, pod: Pod) -> str | None:
        """Return how to have a job without the node that has failed the run; None if no node has."""
