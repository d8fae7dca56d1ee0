"""The interface of a batch queue to which runs are submitted as jobs. `pod/traits.py` names all queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from podrun.runtime.contract import UserError

from ..pod.lazy import load
from ..pod.pod import Pod
from ..pod.traits import TRAITS

if TYPE_CHECKING:
    from ..plan.spec import RunSpec
    from ..staging.bundle import Bundle
    from .runs import RunDirectory


class UnknownSubmissionError(UserError):
    """It is unknown whether a queue has taken a run. Its record stays, because the run may begin."""


class QueueError(Exception):
    """A queue does not answer, or refuses a request; the text is the reason, on one line."""


class QueuedJob(Protocol):
    """State of a job in a queue."""

    @property
    def is_pending(self) -> bool:
        """Return whether it waits in the queue, perhaps after it was requeued."""

    @property
    def is_over(self) -> bool:
        """Return whether it has ended and will not be requeued."""

    @property
    def is_ending(self) -> bool:
        """Return whether its processes have ended and the queue only cleans up its nodes."""

    def why_pending(self, job: str) -> str:
        """Return why it is pending, as a phrase."""


class Queue(ABC):
    """A batch queue. A run is submitted as a job, in which podrun supervises it."""

    title: str
    """Name in messages."""

    # --- jobs -------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def job(self, job: str, submitted: float = 0.0) -> QueuedJob | None:
        """Return the state of a job; None if the queue does not answer. A job that the queue does not know is over.

        Args:
            job: its id.
            submitted: seconds since the epoch at which it was submitted; a cached answer may be older than the job.
        """

    @abstractmethod
    def why_ended(self, job: str) -> str:
        """Return how a job has ended, as a phrase."""

    @abstractmethod
    def shell(self, job: str, node: str) -> str:
        """Return the command line with which a user opens a shell on a node of a job."""

    @abstractmethod
    def end(self, runs: Sequence[tuple[RunDirectory, str]], now: bool) -> list[bool]:
        """End submitted runs: cancel pending jobs, and signal podrun in running ones. Raises QueueError.

        Args:
            runs: the runs, each with its job.
            now: podrun in a running job ends the run without a save.

        Returns:
            For each run True if it has ended, False if podrun in its job is ending it.
        """

    # --- submission -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def options(self, typed: str) -> tuple[Any, list[str]]:
        """Parse the typed options of a job.

        Returns:
            The options, which the queue's inventory also takes, and the mistakes in them.
        """

    @abstractmethod
    def mistakes(self, options: Any, pod: Pod | None) -> list[str]:
        """Return the mistakes that would prevent a job with these options from starting on its nodes, each with a remedy.

        `pod` is None if it is invalid.
        """

    @abstractmethod
    def arguments(self, spec: RunSpec, options: Any, name: str) -> list[str]:
        """Return the arguments of the program that submits the run. `name` becomes part of the job's name."""

    @abstractmethod
    def preview(self, spec: RunSpec, arguments: Sequence[str], tasks: int = 0) -> tuple[Mapping[str, object], str]:
        """Return what would be submitted: as values for JSON, and as a command line for people.

        `tasks`: number of tasks of an array of which the run is the first; 0: a single run.
        """

    @abstractmethod
    def submit(self, spec: RunSpec, bundles: Sequence[Bundle], arguments: Sequence[str]) -> RunDirectory:
        """Submit a run, and return its directory.

        Raises:
            UnknownSubmissionError: it is unknown whether the queue has taken the run.
            UserError: the queue refuses it; no run directory is left.
        """

    @abstractmethod
    def submit_array(
        self, specs: Sequence[RunSpec], bundles: Sequence[Bundle], arguments: Sequence[str], at_once: int | None
    ) -> list[RunDirectory]:
        """Submit runs as the tasks of one job, and return their directories. Raises UserError, and then leaves none.

        Args:
            specs: the runs; their ids are those of tasks (`pod.run_id.task_run_id`).
            bundles: their code.
            arguments: those of one of them.
            at_once: number of tasks that may run at once; None: no limit.
        """


def load_queue(name: str) -> Queue:
    """Import and return the queue of that name."""
    return cast(Queue, load(TRAITS[name].queue))
