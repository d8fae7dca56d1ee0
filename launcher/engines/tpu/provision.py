"""Bring a TPU VM up: create its queued resource, delete a dead one before, and wait until it can be used."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from podrun.runtime.contract import UnavailableError, UserError

from .gcloud import StoppedError, TpuName
from .order import Order
from .queued import Stage
from .service import Standing, Stopped, create, delete, look

PAUSE = 10.0  # seconds between two looks: Google's quota of requests is a few per second and project
_OUTAGE = 600.0  # seconds for which Google may have no answer
_LIMIT = 900.0  # seconds in one state, if it is not the queue: a boot, or a deletion

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Waiting:
    """Who waits, and how."""

    tell: Tell
    """Called with news, a line each."""
    stopped: Stopped

    def sleep(self, seconds: float) -> None:
        """Raises StoppedError."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.stopped():
                raise StoppedError
            time.sleep(min(0.1, seconds))


def refusal(order: Order, standing: Standing) -> str | None:
    """Return why an order cannot be carried out with what there is of that name; None if it can. PURE."""
    queued, tpu = standing.queued, order.tpu
    if queued is None:
        if standing.vm is None or standing.vm.state == "DELETING":
            return None
        return (
            f"there is a TPU VM of that name ({standing.vm.kind}, {standing.vm.state}) without a queued resource; "
            f"podrun leaves it alone: use it by --tpu {tpu.name}, choose another name, or delete it with "
            f"`{tpu.command('delete')}`"
        )
    if standing.is_dead or queued.stage is Stage.ENDING:
        return None
    down = f"delete it with `podrun tpu down {tpu.name} --zone {tpu.zone}`, or choose another name"
    if queued.vm != tpu.name:
        return f"the queued resource of that name is for other TPU VMs, not for one that is called so; {down}"
    if queued.kind and queued.kind != order.kind:
        return f"there is a {queued.kind} of that name ({standing.label}), but the order is for a {order.kind}; {down}"
    if queued.cost is not order.cost:
        return f"there is one of that name which is {queued.cost}, but the order is {order.cost}; {down}"
    return None


def bring_up(order: Order, waiting: Waiting, attempts: int = 1) -> None:
    """Return when the TPU VM is ready.

    Args:
        attempts: how often Google may be asked to make it.

    Raises:
        UserError: Google will not make it, or has something else of that name.
        UnavailableError: Google has no answer for 10 minutes, has no quota left, or does not get the machines up.
        StoppedError: the user does not want to wait; what Google was asked to do goes on.
    """
    asked = 0
    while True:
        standing = _await(order.tpu, waiting, lambda s: _is_settled(s) or refusal(order, s) is not None)
        if why := refusal(order, standing):
            raise UserError(f"{order.tpu.label}: {why}")
        if standing.is_ready:
            return
        if asked >= attempts:
            raise UnavailableError(_failure(order.tpu, standing))
        if asked:
            waiting.sleep(PAUSE * 2**asked)
        if standing.queued is not None:
            waiting.tell(f"{order.tpu.name}: {standing.label}, {standing.meaning}; deleting it")
            take_down(order.tpu, waiting)
        asked += 1
        waiting.tell(f"{order.tpu.name}: creating it ({order.kind}, {order.cost})")
        try:
            create(order, waiting.stopped)
        except UnavailableError as error:
            if asked >= attempts:
                raise
            waiting.tell(str(error))


def take_down(tpu: TpuName, waiting: Waiting) -> None:
    """Delete a queued resource and its TPU VM, and return when they are gone. Raises as `bring_up`."""
    delete(tpu, waiting.stopped)
    _await(tpu, waiting, lambda standing: standing.queued is None and standing.vm is None)


def _is_settled(standing: Standing) -> bool:
    """Return True if the machines are there, or nothing is on the way."""
    is_gone = standing.queued is None and standing.vm is None
    return is_gone or standing.is_ready or standing.is_dead


def _await(tpu: TpuName, waiting: Waiting, done: Callable[[Standing], bool]) -> Standing:
    """Look again and again. The queue has no limit but the user's patience; all else that Google does has one."""
    told = ""
    moved = answered = time.monotonic()
    while True:
        try:
            standing = look(tpu, waiting.stopped)
        except UnavailableError as error:
            if time.monotonic() - answered > _OUTAGE:
                raise
            label = "no answer"
            news = f"{str(error).partition(chr(10))[0]} (podrun tries again, up to {_OUTAGE / 60:.0f} min)"
        else:
            answered = time.monotonic()
            if done(standing):
                return standing
            label, news = standing.label, f"{tpu.name}: {standing.label}, {standing.meaning}"
            queued = standing.queued
            if label != told or (queued is not None and queued.stage is Stage.WAITING):
                moved = answered
            elif answered - moved > _LIMIT:
                raise UnavailableError(
                    f"{tpu.label}: {label} for {_LIMIT / 60:.0f} min, which Google should be done with by now; look at "
                    f"`{tpu.command('describe', 'queued-resources')}` and `{tpu.command('describe')}`, then try again"
                )
        if label != told:
            waiting.tell(news)
        told = label
        waiting.sleep(PAUSE)


def _failure(tpu: TpuName, standing: Standing) -> str:
    return (
        f"{tpu.label}: {standing.label}, {standing.meaning}\n"
        f"it holds quota until `podrun tpu down {tpu.name} --zone {tpu.zone}`; another zone or class of cost may have "
        "machines"
    )
