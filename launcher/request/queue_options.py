"""Parse the options of a queue: `--slurm=partition=gpu,time=2:00:00`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from ..pod.traits import QUEUES
from ..rundir.queues import Queue, load_queue
from .request import Request


class Submission(NamedTuple):
    """A queue, and the options of the job to submit to it."""

    queue: Queue
    options: Any
    """The parsed options, as `Queue.options` returns them."""


def queue_name(request: Request) -> str | None:
    """Return the name of the queue that the run is submitted to; None if the run starts now."""
    return next((name for name in QUEUES if request.where.inventories.get(name)), None)


def with_queue_options(request: Request, name: str) -> tuple[Request, Submission, list[str]]:
    """Parse the options of the queue `name`.

    Returns the request with the parsed options, the submission, and the mistakes in the options.
    """
    queue = load_queue(name)
    options, problems = queue.options(str(request.where.inventories[name]))
    where = replace(request.where, inventories={**request.where.inventories, name: options})
    # the job's own podrun supervises it, so --detach changes nothing
    return request._replace(where=where, detach=False), Submission(queue, options), problems
