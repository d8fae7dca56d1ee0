"""Recreate the TPU of a run whenever Google takes it away, in the first of several zones that has machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from podrun.runtime.contract import UnavailableError, UserError

from ...pod.pod import Pod
from . import provision
from .apis import APIS
from .base import Status
from .gcloud import StoppedError, TpuName
from .order import Cost, Order
from .prices import Price
from .provision import Waiting, describe_end

_ATTEMPTS = 5  # requests that may fail in a row
_EARLY = 300.0  # seconds by which machines of flex-start may end before their time
_ZONE_WAIT = 600.0  # seconds in the queue of one zone, if there are others
_LONG_ZONE_WAIT = 7200.0  # for requests that are made to wait, and lose their place where they are left


class RenewableTpu:
    """A TPU that is recreated when Google takes it away: a `Renewal`. The first `renew` creates it.

    Args:
        order: the TPU, in the zone that is tried first.
        find: returns the pod of the TPU once it is ready; raises UserError or UnavailableError.
        zones: further zones, in the order in which they are tried.
        prices: list prices by zone, as far as they are known.
        is_deleted: True if the TPU is deleted at the end, which the caller does by `delete`.
    """

    def __init__(
        self,
        order: Order,
        find: Callable[[TpuName], Pod],
        zones: Sequence[str] = (),
        prices: Mapping[str, Price] = MappingProxyType({}),
        is_deleted: bool = False,
    ) -> None:
        self._orders = [order, *(replace(order, tpu=replace(order.tpu, zone=zone)) for zone in zones)]
        self._order = order
        self._find = find
        self._prices = prices
        self._is_deleted = is_deleted
        self._since: float | None = None  # when the machines were ready
        self._ends: float | None = None  # when Google ends them
        self._over = ""
        self._past: list[tuple[str, float]] = []  # zone and seconds of earlier machines

    @property
    def name(self) -> str:
        return self._order.tpu.name or ""

    @property
    def tpu(self) -> TpuName:
        """Return the TPU in the zone in which it is now."""
        return self._order.tpu

    @property
    def over(self) -> str:
        return self._over

    @property
    def remark(self) -> str:
        tpu = self._order.tpu
        project = f" --project {tpu.project}" if tpu.project else ""
        down = f"`podrun tpu down {self.name} --zone {tpu.zone}{project}`"
        end = (
            f"{self.name} is deleted now"
            if self._is_deleted
            else f"its machines are gone, and {down} deletes the rest"
            if self._over
            else f"{self.name} stays: {down} deletes it; until then it costs"
        )
        return f"{self.cost_so_far}; {end}"

    @property
    def cost_so_far(self) -> str:
        """Return the time for which there were machines, and its cost if the price is known."""
        uses = [*self._past, *([] if self._since is None else [(self._order.tpu.zone, time.time() - self._since)])]
        hours = sum(seconds for _, seconds in uses) / 3600
        known = [(self._prices[zone], seconds) for zone, seconds in uses if zone in self._prices]
        cost = ""
        if known and len(known) == len(uses):
            total = sum(price.per_hour * seconds / 3600 for price, seconds in known)
            cost = f", about {total:.2f} {known[0][0].currency} by the price list"
        return f"{self.name} had machines for {hours:.2f} h so far ({self._order.cost}{cost})"

    def why_taken(self, limit: float, note: Callable[[str], None], stopped: Callable[[], int]) -> str:
        waiting = Waiting(note, stopped)
        deadline = time.monotonic() + limit
        while True:
            late = time.monotonic() > deadline
            try:
                status = APIS[self._order.api].query_status(self._order.tpu, stopped)
                self._over = self._time_over(status) or status.stopped_by_user(self.name)
                if self._over:
                    note(self._over)
                    return ""
                if why := status.taken(self.name):
                    return why
            except UnavailableError:
                if late:
                    raise
            except StoppedError:
                return ""
            if late:
                return ""
            try:
                waiting.sleep(provision.PAUSE)
            except StoppedError:
                return ""

    def _time_over(self, status: Status) -> str:
        """Return a sentence if the machines are gone because their time of flex-start is over; otherwise empty."""
        if self._order.cost is not Cost.FLEX or not status.is_there or status.is_ready:
            return ""
        # before the end Google may have taken them, such as for a repair; at the end it deletes them, as a user does
        is_over = not status.is_coming if self._ends is None else time.time() > self._ends - _EARLY
        if not is_over or (self._ends is None and status.stopped_by_user(self.name)):
            return ""
        return (
            f"{self.name} has ended: machines of --flex-start run for at most {self._order.max_run}, so it is not created "
            "again; the same command creates it again, and the run goes on from its newest checkpoint"
        )

    def renew(self, note: Callable[[str], None], stopped: Callable[[], int]) -> Pod | None:
        waiting = Waiting(note, stopped)
        if self._since is not None:
            self._past.append((self._order.tpu.zone, time.time() - self._since))
            self._since = None
            note(self.cost_so_far)
        left = _ATTEMPTS
        while True:
            left -= 1
            try:
                self._ends = self._provision(waiting).ends
            except StoppedError:
                return None
            self._since = time.time()
            if self._ends is not None:
                note(f"{self.name}: {describe_end(self._ends)}")
            try:
                return self._find(self._order.tpu)
            except UnavailableError as error:  # it may have been taken away meanwhile
                if not left:
                    raise
                note(str(error))
            try:
                waiting.sleep(provision.PAUSE)
            except StoppedError:
                return None

    def delete(self, note: Callable[[str], None], stopped: Callable[[], int]) -> None:
        """Delete the TPU, and return when it is gone. Raises UserError, UnavailableError, StoppedError."""
        self._leave(Waiting(note, stopped))

    def _provision(self, waiting: Waiting) -> Status:
        """Provision the TPU in the first zone that has machines, and return its status.

        Raises UserError, UnavailableError, StoppedError.
        """
        if len(self._orders) == 1:
            return provision.provision(self._order, waiting, attempts=_ATTEMPTS)
        rounds = 0  # in which no zone has even taken the request
        orders = self._in_turn(waiting)
        while True:
            is_queued = False
            for order in list(orders):
                self._order = order
                try:
                    patience = _LONG_ZONE_WAIT if order.cost in (Cost.FLEX, Cost.RESERVED) else _ZONE_WAIT
                    return provision.provision(order, waiting, queue_limit=patience)
                except UserError as error:  # it stays wrong, such as a zone without this type
                    orders.remove(order)
                    if not orders:
                        raise
                    waiting.tell(f"{error}\n{order.tpu.zone} is left out from now on")
                except UnavailableError as error:
                    is_queued |= isinstance(error, provision.QueueError)
                    if rounds + 1 == _ATTEMPTS and order == orders[-1] and not is_queued:
                        self._leave(waiting)
                        raise
                    waiting.tell(
                        f"{error}\n{order.tpu.zone} has no machines for {self.name} now; the next zone is tried"
                    )
                    self._leave(waiting)
            rounds = 0 if is_queued else rounds + 1
            waiting.sleep(provision.PAUSE * 2**rounds)

    def _in_turn(self, waiting: Waiting) -> list[Order]:
        """Return the orders in the order in which they are tried.

        A zone in which the TPU is already, or in which Google repairs it, is the first. What is dead is deleted.
        """
        current = [self._order, *(order for order in self._orders if order != self._order)]
        for order in current:
            status = APIS[order.api].query_status(order.tpu, waiting.stopped)
            if status.is_coming and status.refusal(order) is None:
                return [order, *(other for other in self._orders if other != order)]
            if status.is_dead and order == self._order:
                self._leave(waiting)
        return list(self._orders)

    def _leave(self, waiting: Waiting) -> None:
        """Delete the TPU in the current zone, so that there are never two of them.

        An outage of Google's is waited for. Raises UserError, UnavailableError, StoppedError.
        """
        api, tpu = APIS[self._order.api], self._order.tpu
        for attempt in range(_ATTEMPTS):
            try:
                if why := api.query_status(tpu, waiting.stopped).refusal(self._order):
                    waiting.tell(f"{self.name} in {tpu.zone} is left alone: {why}")
                else:
                    provision.delete_and_wait(api, tpu, waiting)
                return
            except UnavailableError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise
                waiting.tell(str(error))
                waiting.sleep(provision.PAUSE * 2**attempt)
