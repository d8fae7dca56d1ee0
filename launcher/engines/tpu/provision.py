"""Provision a TPU: delete what is dead under its name, create it again, and wait until it is ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from podrun.runtime.contract import UnavailableError, UserError

from ...view.times import duration, moment
from .apis import APIS
from .base import Api, Status, Stopped
from .gcloud import StoppedError, TpuName
from .order import Cost, Order

PAUSE = 10.0  # seconds between two queries: the quota is a few requests per second and project
_OUTAGE = 600.0  # seconds for which Google may not answer
_LIMIT = 900.0  # seconds in one state other than the queue, such as a boot or a deletion

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Waiting:
    """How the caller wants to wait: where progress goes, and when to give up."""

    tell: Tell
    """Called with each change, as one line."""
    stopped: Stopped

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise StoppedError soon after the user asks to stop."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.stopped():
                raise StoppedError
            time.sleep(min(0.1, seconds))


class QueueError(UnavailableError):
    """The order has waited in Google's queue for as long as it may."""


def provision(order: Order, waiting: Waiting, attempts: int = 1, queue_limit: float | None = None) -> Status:
    """Create a TPU unless it exists, and return its status when it is ready.

    Args:
        order: the TPU.
        waiting: where progress goes, and when to give up.
        attempts: number of creation requests before it gives up.
        queue_limit: seconds for which it may wait in Google's queue, but for a restart of its machines; None: without a
            limit.

    Raises:
        QueueError: `queue_limit` is over.
        UserError: Google refuses the request, or something else has that name.
        UnavailableError: Google does not answer for 10 minutes, the quota is used up, or the machines do not start.
        StoppedError: the user asked to stop. What Google has been asked to do continues.
    """
    api = APIS[order.api]
    asked = 0
    while True:
        status = _await(api, order.tpu, waiting, lambda s: _is_settled(s) or s.refusal(order) is not None, queue_limit)
        if why := status.refusal(order):
            raise UserError(f"{order.tpu.label}: {why}")
        if status.is_ready:
            return status
        if asked >= attempts:
            if status.is_costly:  # Google goes on trying, and it would cost from then on
                delete_and_wait(api, order.tpu, waiting)
            raise UnavailableError(_failure(order.tpu, status))
        if asked:
            waiting.sleep(PAUSE * 2**asked)
        if status.is_there:
            waiting.tell(f"{order.tpu.name}: {status.label}, {status.meaning}; deleting it")
            delete_and_wait(api, order.tpu, waiting)
        asked += 1
        waiting.tell(f"{order.tpu.name}: creating it ({order.kind}, {order.cost})")
        try:
            api.create(order, waiting.stopped)
        except UnavailableError as error:
            if asked >= attempts:
                raise
            waiting.tell(str(error))


def delete_and_wait(api: Api, tpu: TpuName, waiting: Waiting) -> None:
    """Delete a TPU with all of its parts, and return when they are gone. Raises the errors of `provision`."""
    api.delete(tpu, waiting.stopped)
    _await(api, tpu, waiting, lambda status: not status.is_there)


def _is_settled(status: Status) -> bool:
    """Return True unless a creation or a deletion is in progress."""
    return not status.is_there or status.is_ready or status.is_dead


def _await(
    api: Api, tpu: TpuName, waiting: Waiting, done: Callable[[Status], bool], queue_limit: float | None = None
) -> Status:
    """Query the status until `done` returns True for it, and return it.

    There is no time limit but `queue_limit` while Google's queue has the order. Every other state has one.
    """
    told = ""
    moved = answered = began = time.monotonic()
    while True:
        try:
            status = api.query_status(tpu, waiting.stopped)
        except UnavailableError as error:
            if time.monotonic() - answered > _OUTAGE:
                raise
            label = "no answer"
            news = f"{str(error).partition(chr(10))[0]} (podrun tries again, up to {_OUTAGE / 60:.0f} min)"
        else:
            answered = time.monotonic()
            if done(status):
                return status
            label, news = status.label, f"{tpu.name}: {status.label}, {status.meaning}"
            is_limited = status.in_queue and not status.is_restarting
            if queue_limit is not None and is_limited and answered - began > queue_limit:
                raise QueueError(f"{tpu.label}: {label} for {queue_limit / 60:.0f} min")
            if label != told or status.in_queue:
                moved = answered
            elif answered - moved > _LIMIT:
                look = f"podrun tpu list --zone {tpu.zone}{f' --project {tpu.project}' if tpu.project else ''}"
                raise UnavailableError(
                    f"{tpu.label}: {label} for {_LIMIT / 60:.0f} min, longer than this should take; look at "
                    f"`{look}`, then try again"
                )
        if label != told:
            waiting.tell(news)
        told = label
        waiting.sleep(PAUSE)


_ANYWHERE = "another zone or class of cost may have free machines"
_ELSEWHERE = {
    Cost.RESERVED: "`gcloud compute reservations list` shows when the reservation begins and how much of it is used",
    Cost.FLEX: "a longer --valid-until-duration lets it wait longer, and another zone may have free machines",
}


def describe_end(ends: float) -> str:
    """Return a sentence about when Google ends the machines."""
    return f"Google ends its machines at {moment(ends)}, in {duration(ends - time.time())}"


def _failure(tpu: TpuName, status: Status) -> str:
    what = f"{tpu.label}: {status.label}, {status.meaning}"
    if status.is_costly:
        return f"{what}\nit was deleted again, so that it does not cost"
    return (
        f"{what}\n"
        f"it holds quota until `podrun tpu down {tpu.name} --zone {tpu.zone}`; {_ELSEWHERE.get(status.cost, _ANYWHERE)}"
    )
