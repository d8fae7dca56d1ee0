"""Recreate the TPU VM of a run whenever Google takes it away."""

from __future__ import annotations

import time
from collections.abc import Callable

from podrun.runtime.contract import UnavailableError

from ...pod.pod import Pod
from . import provision
from .apis import APIS
from .gcloud import StoppedError
from .order import Order
from .provision import Waiting

_ATTEMPTS = 5  # requests that may fail in a row


class RenewableTpu:
    """A TPU VM that is recreated when Google takes it away: a `Renewal`. The first `renew` creates it.

    Args:
        order: the TPU VM.
        find: returns the pod of the TPU VM once it is ready; raises UserError or UnavailableError.
    """

    def __init__(self, order: Order, find: Callable[[], Pod]) -> None:
        self._order = order
        self._find = find

    @property
    def name(self) -> str:
        return self._order.tpu.name or ""

    @property
    def remark(self) -> str:
        tpu = self._order.tpu
        project = f" --project {tpu.project}" if tpu.project else ""
        return f"{self.name} stays: `podrun tpu down {self.name} --zone {tpu.zone}{project}` deletes it; until then it costs"

    def why_taken(self, limit: float, note: Callable[[str], None], stopped: Callable[[], int]) -> str:
        waiting = Waiting(note, stopped)
        deadline = time.monotonic() + limit
        while True:
            late = time.monotonic() > deadline
            try:
                status = APIS[self._order.api].query_status(self._order.tpu, stopped)
                if why := status.taken(self.name):
                    return why
                if why := status.stopped_by_user(self.name):
                    note(why)
                    return ""
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

    def renew(self, note: Callable[[str], None], stopped: Callable[[], int]) -> Pod | None:
        waiting = Waiting(note, stopped)
        left = _ATTEMPTS
        while True:
            left -= 1
            try:
                provision.provision(self._order, waiting, attempts=_ATTEMPTS)
            except StoppedError:
                return None
            try:
                return self._find()
            except UnavailableError as error:  # it may have been taken away meanwhile
                if not left:
                    raise
                note(str(error))
            try:
                waiting.sleep(provision.PAUSE)
            except StoppedError:
                return None
