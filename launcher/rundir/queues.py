"""The interface of a queue that runs are submitted to as jobs, and the table of all queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..pod.lazy import load
from ..pod.pod import Pod

if TYPE_CHECKING:
    from ..staging.bundle import Bundle
    from .runs import RunDirectory
    from .spec import RunSpec


class QueueError(Exception):
    """A queue has not answered, or refused; the text says why, on one line."""


class QueuedJob(Protocol):
    """State of a job in a queue: a value."""

    @property
    def is_pending(self) -> bool:
        """Return whether it waits in the queue, for the first time or again."""

    @property
    def is_over(self) -> bool:
        """Return whether it has ended for good."""

    @property
    def is_ending(self) -> bool:
        """Return whether all of it has ended, and the queue only waits for its nodes."""

    def why_pending(self, job: str) -> str:
        """Return why it waits, as a phrase."""


class Queue(ABC):
    """A queue that runs are submitted to, each as a job in which podrun supervises it."""

    title: str
    """Name in messages."""

    # --- jobs -------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def job(self, job: str, submitted: float = 0.0) -> QueuedJob | None:
        """Return the state of a job: one that the queue has forgotten is over. None if the queue does not answer here.

        Args:
            job: its id.
            submitted: seconds since the epoch. An answer from before says nothing of the job.
        """

    @abstractmethod
    def why_ended(self, job: str) -> str:
        """Return how a job came to its end, as a phrase."""

    @abstractmethod
    def shell(self, job: str, node: str) -> str:
        """Return the command line that opens a shell on a node of a job."""

    @abstractmethod
    def end(self, directory: RunDirectory, job: str, now: bool) -> bool:
        """End a submitted run: in the queue, or by a signal to the podrun in its job. Raises QueueError.

        Returns whether all of it has ended; else its podrun is about to end it, `now` or once the state is saved.
        """

    # --- submission -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def options(self, typed: str) -> tuple[Any, list[str]]:
        """Return the options of a job, which the queue's inventory takes as well, and the mistakes in what was typed."""

    @abstractmethod
    def mistakes(self, options: Any, pod: Pod | None) -> list[str]:
        """Return what would keep a job with these options from starting on its nodes, each with its remedy.

        `pod` is None if it has mistakes of its own.
        """

    @abstractmethod
    def arguments(self, spec: RunSpec, options: Any, name: str) -> list[str]:
        """Return the arguments of the program that submits the run; `name` is what its job is called after."""

    @abstractmethod
    def preview(self, spec: RunSpec, arguments: Sequence[str]) -> tuple[Mapping[str, Any], str]:
        """Return what would be submitted: for JSON, and as a command line for people."""

    @abstractmethod
    def submit(self, spec: RunSpec, bundles: Sequence[Bundle], arguments: Sequence[str]) -> RunDirectory:
        """Submit a run, and return its directory. Raises UserError, and leaves no run then."""


QUEUES: Mapping[str, str] = MappingProxyType(
    {
        "slurm": "engines.slurm.slurm_queue:QUEUE",
    }
)
"""Maps the name of a queue, which is that of its inventory's option and of the transport to its nodes, to the Queue."""


def load_queue(name: str) -> Queue:
    """Return the queue; imports it only now."""
    return cast(Queue, load(QUEUES[name]))
