"""Provision a TPU VM: delete a dead queued resource of its name, create a new one, and wait until it is ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from podrun.runtime.contract import UnavailableError, UserError

from .gcloud import StoppedError, TpuName
from .order import Order
from .queued import Stage
from .service import Stopped, TpuStatus, create, delete, query_status

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


def refusal(order: Order, status: TpuStatus) -> str | None:
    """Return why resources that exist under this name prevent the order; None if they do not. PURE."""
    queued, tpu = status.queued, order.tpu
    if queued is None:
        if status.vm is None or status.vm.state == "DELETING":
            return None
        return (
            f"there is a TPU VM of that name ({status.vm.kind}, {status.vm.state}) without a queued resource; "
            f"podrun leaves it alone: use it with --tpu {tpu.name}, choose another name, or delete it with "
            f"`{tpu.command('delete')}`"
        )
    if status.is_dead or queued.stage is Stage.ENDING:
        return None
    down = f"delete it with `podrun tpu down {tpu.name} --zone {tpu.zone}`, or choose another name"
    if queued.vm != tpu.name:
        return f"the queued resource of that name is for a TPU VM with another name; {down}"
    if queued.kind and queued.kind != order.kind:
        return f"there is a {queued.kind} of that name ({status.label}), but the order is for a {order.kind}; {down}"
    if queued.cost is not order.cost:
        return f"there is one of that name, but it is {queued.cost}, and the order is {order.cost}; {down}"
    return None


def provision(order: Order, waiting: Waiting, attempts: int = 1) -> None:
    """Create a TPU VM unless it exists, and return when it is ready.

    Args:
        order: the TPU VM.
        waiting: where progress goes, and when to give up.
        attempts: number of creation requests before it gives up.

    Raises:
        UserError: Google refuses the request, or something else has that name.
        UnavailableError: Google does not answer for 10 minutes, the quota is used up, or the machines do not start.
        StoppedError: the user asked to stop. What Google has been asked to do continues.
    """
    asked = 0
    while True:
        status = _await(order.tpu, waiting, lambda s: _is_settled(s) or refusal(order, s) is not None)
        if why := refusal(order, status):
            raise UserError(f"{order.tpu.label}: {why}")
        if status.is_ready:
            return
        if asked >= attempts:
            raise UnavailableError(_failure(order.tpu, status))
        if asked:
            waiting.sleep(PAUSE * 2**asked)
        if status.queued is not None:
            waiting.tell(f"{order.tpu.name}: {status.label}, {status.meaning}; deleting it")
            delete_and_wait(order.tpu, waiting)
        asked += 1
        waiting.tell(f"{order.tpu.name}: creating it ({order.kind}, {order.cost})")
        try:
            create(order, waiting.stopped)
        except UnavailableError as error:
            if asked >= attempts:
                raise
            waiting.tell(str(error))


def delete_and_wait(tpu: TpuName, waiting: Waiting) -> None:
    """Delete a queued resource and its TPU VM, and return when they are gone. Raises the errors of `provision`."""
    delete(tpu, waiting.stopped)
    _await(tpu, waiting, lambda status: status.queued is None and status.vm is None)


def _is_settled(status: TpuStatus) -> bool:
    """Return True unless a creation or a deletion is in progress."""
    is_gone = status.queued is None and status.vm is None
    return is_gone or status.is_ready or status.is_dead


def _await(tpu: TpuName, waiting: Waiting, done: Callable[[TpuStatus], bool]) -> TpuStatus:
    """Query the status until `done` returns True for it, and return it.

    There is no time limit while Google's queue has the order. Every other state has one.
    """
    told = ""
    moved = answered = time.monotonic()
    while True:
        try:
            status = query_status(tpu, waiting.stopped)
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
            queued = status.queued
            if label != told or (queued is not None and queued.stage is Stage.WAITING):
                moved = answered
            elif answered - moved > _LIMIT:
                raise UnavailableError(
                    f"{tpu.label}: {label} for {_LIMIT / 60:.0f} min, longer than this should take; look at "
                    f"`{tpu.command('describe', 'queued-resources')}` and `{tpu.command('describe')}`, then try again"
                )
        if label != told:
            waiting.tell(news)
        told = label
        waiting.sleep(PAUSE)


def _failure(tpu: TpuName, status: TpuStatus) -> str:
    return (
        f"{tpu.label}: {status.label}, {status.meaning}\n"
        f"it holds quota until `podrun tpu down {tpu.name} --zone {tpu.zone}`; another zone or class of cost may have "
        "free machines"
    )
