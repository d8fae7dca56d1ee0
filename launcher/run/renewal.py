"""Continue on new machines: recreate a pod whose machines were taken away, and restart the run on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from podrun.runtime.contract import ExitCode, UnavailableError, UserError

from ..attempt.cause import Failure
from ..pod.pod import Pod
from .policy import Attempt, Ending

_RECORDS_LAG = 180.0  # seconds for the cloud's records to show that the machines were taken; they lag behind
_MAYBE_TAKEN = (Ending.LOST, Ending.PREEMPTED, Ending.UNPREPARED)
_NEVER_TAKEN = (Ending.DONE, Ending.STOPPED, Ending.CONFIG, Ending.RESIZED)


class Renewal(Protocol):
    """The service that created the machines of a pod and can recreate them."""

    @property
    def name(self) -> str:
        """Return the name of the pod."""

    @property
    def over(self) -> str:
        """Return why the machines are gone for good, as a sentence; empty unless `why_taken` has found that."""

    @property
    def remark(self) -> str:
        """Return a message about what happens to the machines at the end of the run."""

    def why_taken(self, limit: float, note: Callable[[str], None], stopped: Callable[[], int]) -> str:
        """Return what happened to the machines, as a sentence; empty if they exist, or will not be recreated (`over`).

        Args:
            limit: seconds for which to ask again while they seem to exist.
            note: prints a message to the user.
            stopped: returns how often the user has asked to stop.

        Raises UserError, UnavailableError.
        """

    def renew(self, note: Callable[[str], None], stopped: Callable[[], int]) -> Pod | None:
        """Recreate the machines, and wait until they are ready.

        Returns the pod, or None if the user interrupts the wait. Raises UserError, and UnavailableError after several
        tries.
        """


def why_taken(renewal: Renewal, attempt: Attempt, note: Callable[[str], None], stopped: Callable[[], int]) -> str:
    """Return why the machines of an attempt are gone; empty if they exist, or if that is unknown."""
    if attempt.ending in _NEVER_TAKEN:
        return ""
    # if all hosts fall silent at once, the launcher's network looks guilty; but taken machines look the same
    silent = attempt.ending is Ending.LAUNCHER and attempt.code == ExitCode.UNAVAILABLE
    try:
        return renewal.why_taken(_RECORDS_LAG if silent or attempt.ending in _MAYBE_TAKEN else 0.0, note, stopped)
    except (UserError, UnavailableError) as error:
        note(f"cannot find out whether the machines still exist: {error}")
        return ""


def renewed(renewal: Renewal, note: Callable[[str], None], stopped: Callable[[], int]) -> Pod | Failure | None:
    """Wait for new machines.

    Returns:
        The pod with the new machines, a `Failure` if there are none, or None if the user interrupted the wait.
    """
    try:
        return renewal.renew(note, stopped)
    except (UserError, UnavailableError) as error:
        code = ExitCode.BAD_CONFIG if isinstance(error, UserError) else ExitCode.UNAVAILABLE
        what, _, details = str(error).partition("\n")
        return Failure(renewal.name, None, f"could not be created again: {what}", code, details=details)
