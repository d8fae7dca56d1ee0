"""Take the machines of a run away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from podrun.launcher.attempt.cause import Failure
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.pod.pod import Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run.policy import Attempt, Ending
from podrun.launcher.run.renewal import renewed, why_taken
from podrun.runtime.contract import ExitCode, UnavailableError, UserError

POD = simulated_pod(parse_slice("cpu-1x1"))


@dataclass
class Machines:
    """Machines that are gone; `error` is raised in place of every answer."""

    error: Exception | None = None
    asked: list[float] = field(default_factory=list)
    name: str = "my-pod"
    over: str = ""
    remark: str = ""

    def why_taken(self, limit: float, note: Callable[[str], None], stopped: Callable[[], int]) -> str:
        self.asked.append(limit)
        if self.error:
            raise self.error
        return "gone"

    def renew(self, note: Callable[[str], None], stopped: Callable[[], int]) -> Pod | None:
        if self.error:
            raise self.error
        return None if stopped() else POD


def never() -> int:
    return 0


@pytest.mark.parametrize(
    ("ending", "code", "limit"),
    [
        (Ending.DONE, 0, None),
        (Ending.STOPPED, 130, None),
        (Ending.CONFIG, 2, None),
        (Ending.RESIZED, 75, None),
        (Ending.FAILED, 1, 0),
        (Ending.LAUNCHER, 1, 0),
        (Ending.LAUNCHER, ExitCode.UNAVAILABLE, 180),
        (Ending.LOST, ExitCode.UNAVAILABLE, 180),
        (Ending.PREEMPTED, ExitCode.PREEMPTED, 180),
        (Ending.UNPREPARED, ExitCode.UNAVAILABLE, 180),
    ],
)
def test_how_long_it_is_looked_for(ending: Ending, code: int, limit: float | None) -> None:
    """Hosts that fell silent, or were asked to stop, may be gone although nobody says so yet."""
    machines = Machines()
    why = why_taken(machines, Attempt(ending, code), print, never)
    assert (why, machines.asked) == (("", []) if limit is None else ("gone", [limit]))


@pytest.mark.parametrize("error", [UserError("not logged in"), UnavailableError("no network")])
def test_what_cannot_be_asked_is_not_guessed(error: Exception) -> None:
    told: list[str] = []
    assert why_taken(Machines(error), Attempt(Ending.LOST), told.append, never) == ""
    assert told == [f"cannot find out whether the machines still exist: {error}"]


def test_new_machines() -> None:
    assert renewed(Machines(), print, never) == POD
    assert renewed(Machines(), print, lambda: 1) is None
    unavailable = renewed(Machines(UnavailableError("no quota\ngcloud said: x")), print, never)
    assert isinstance(unavailable, Failure) and unavailable.code == ExitCode.UNAVAILABLE
    assert (
        str(unavailable) == "my-pod: could not be created again: no quota" and unavailable.details == "gcloud said: x"
    )
    refused = renewed(Machines(UserError("no")), print, never)
    assert isinstance(refused, Failure) and refused.code == ExitCode.BAD_CONFIG
