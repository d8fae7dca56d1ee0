"""Recreate the TPU VM of a run whenever Google takes it away."""

from __future__ import annotations

import time
from collections.abc import Callable

from podrun.runtime.contract import UnavailableError

from ...pod.pod import Pod
from . import provision
from .gcloud import StoppedError
from .order import Order
from .provision import Waiting
from .queued import STATES, Stage
from .service import TpuStatus, query_status

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
                status = query_status(self._order.tpu, stopped)
                if why := taken(self.name, status):
                    return why
                if why := stopped_by_user(self.name, status):
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


def taken(name: str, status: TpuStatus) -> str:
    """Return a sentence if Google has taken the machines away; otherwise an empty string. PURE."""
    queued = status.queued
    if queued is None or stopped_by_user(name, status):
        return ""
    known = queued.state in STATES
    if status.is_dead or queued.state == "SUSPENDING" or (known and queued.stage is Stage.WAITING):
        return f"{name} was taken away by Google ({status.label})"
    return ""


def stopped_by_user(name: str, status: TpuStatus) -> str:
    """Return a sentence if a user has deleted or suspended the TPU VM; otherwise an empty string. PURE."""
    queued = status.queued
    if queued is None or queued.state == "DELETING":
        return f"{name} was deleted by a user, so it is not created again"
    if queued.by_user and queued.state in ("SUSPENDING", "SUSPENDED"):
        return f"{name} was suspended by a user, so it is not created again"
    return ""
