"""Keep a TPU VM for a run: create it again whenever Google takes it away."""

from __future__ import annotations

import time
from collections.abc import Callable

from podrun.runtime.contract import UnavailableError

from ...pod.pod import Pod
from . import bring_up
from .bring_up import Waiting
from .gcloud import StoppedError
from .order import Order
from .queued import STATES, Stage
from .service import Standing, look

_ATTEMPTS = 5  # requests that may fail in a row


class KeptTpu:
    """A TPU VM that is created again: a `Renewal`, once it has been created for the first time by the same call."""

    def __init__(self, order: Order, find: Callable[[], Pod]) -> None:
        """`find` returns the pod of a TPU VM that is ready; raises UserError, UnavailableError."""
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

    def why_taken(self, patience: float, note: Callable[[str], None], stopped: Callable[[], int]) -> str:
        waiting = Waiting(note, stopped)
        deadline = time.monotonic() + patience
        while True:
            late = time.monotonic() > deadline
            try:
                standing = look(self._order.tpu, stopped)
                if why := taken(self.name, standing):
                    return why
                if why := not_again(self.name, standing):
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
                waiting.sleep(bring_up.PAUSE)
            except StoppedError:
                return ""

    def renew(self, note: Callable[[str], None], stopped: Callable[[], int]) -> Pod | None:
        waiting = Waiting(note, stopped)
        left = _ATTEMPTS
        while True:
            left -= 1
            try:
                bring_up.bring_up(self._order, waiting, attempts=_ATTEMPTS)
            except StoppedError:
                return None
            try:
                return self._find()
            except UnavailableError as error:  # it may have been taken away since
                if not left:
                    raise
                note(str(error))
            try:
                waiting.sleep(bring_up.PAUSE)
            except StoppedError:
                return None


def taken(name: str, standing: Standing) -> str:
    """Return what Google has done, as a sentence; empty if it has not taken the machines away. PURE."""
    queued = standing.queued
    if queued is None or not_again(name, standing):
        return ""
    known = queued.state in STATES
    if standing.is_dead or queued.state == "SUSPENDING" or (known and queued.stage is Stage.WAITING):
        return f"{name} was taken away by Google ({standing.label})"
    return ""


def not_again(name: str, standing: Standing) -> str:
    """Return why a TPU VM that is gone is not to be created again, as a sentence: a user has it so; or nothing. PURE."""
    queued = standing.queued
    if queued is None or queued.state == "DELETING":
        return f"{name} was deleted by a user, so it is not created again"
    if queued.by_user and queued.state in ("SUSPENDING", "SUSPENDED"):
        return f"{name} was suspended by a user, so it is not created again"
    return ""
