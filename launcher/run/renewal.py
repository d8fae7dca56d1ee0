"""Go on with new machines: a pod whose machines were taken away is created again, and the run with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from podrun.runtime.contract import ExitCode, UnavailableError, UserError

from ..attempt.cause import Failure
from ..pod.pod import Pod
from .policy import Attempt, Ending

_PATIENCE = 180.0  # seconds for the owner of the machines to say that they were taken: its record lags behind
_MAYBE_TAKEN = (Ending.LOST, Ending.PREEMPTED, Ending.UNPREPARED)
_NEVER_TAKEN = (Ending.DONE, Ending.STOPPED, Ending.CONFIG, Ending.RESIZED)


class Renewal(Protocol):
    """Whoever has created the machines of a pod, and can create them again."""

    @property
    def name(self) -> str:
        """Return the name of the pod."""

    @property
    def remark(self) -> str:
        """Return what becomes of the machines at the end of the run, for the user."""

    def why_taken(self, patience: float, note: Callable[[str], None], stopped: Callable[[], int]) -> str:
        """Return what has happened to the machines, as a sentence; empty if they are there, or are not to be created again.

        Looks for `patience` seconds, until they are gone. Raises UserError, UnavailableError.
        """

    def renew(self, note: Callable[[str], None], stopped: Callable[[], int]) -> Pod | None:
        """Create the machines again; return the pod when they are ready, None if the user stops that.

        Raises UserError, and UnavailableError after several tries.
        """


def why_taken(renewal: Renewal, attempt: Attempt, note: Callable[[str], None], stopped: Callable[[], int]) -> str:
    """Return why the machines of an attempt are gone; empty if they are not, or nobody can say."""
    if attempt.ending in _NEVER_TAKEN:
        return ""
    # If all hosts fall silent at once, the launcher's network is blamed; but so it looks when all machines are taken.
    silent = attempt.ending is Ending.LAUNCHER and attempt.code == ExitCode.UNAVAILABLE
    try:
        return renewal.why_taken(_PATIENCE if silent or attempt.ending in _MAYBE_TAKEN else 0.0, note, stopped)
    except (UserError, UnavailableError) as error:
        note(f"it is not known whether the machines are there still: {error}")
        return ""


def renewed(renewal: Renewal, note: Callable[[str], None], stopped: Callable[[], int]) -> Pod | Failure | None:
    """Return the pod with new machines, or why there are none; None if the user has stopped the wait."""
    try:
        return renewal.renew(note, stopped)
    except (UserError, UnavailableError) as error:
        code = ExitCode.BAD_CONFIG if isinstance(error, UserError) else ExitCode.UNAVAILABLE
        what, _, details = str(error).partition("\n")
        return Failure(renewal.name, None, f"could not be created again: {what}", code, details=details)
