"""The outcome of an attempt: what its other processes did, and what is kept of it if no other attempt follows."""

from __future__ import annotations

import pytest

from podrun.launcher.attempt.cause import Failure
from podrun.launcher.attempt.outcome import Outcome, Process, doing
from podrun.runtime.contract import ExitCode, Phase, ProgressRecord


def process(number: int, phase: Phase | None, step: int | None, arrived: int | None = None) -> Process:
    beat = None if arrived is None or phase is None else ProgressRecord(1, phase, 4, 0, arrived, 0)
    return Process(f"host-{number}", number, phase, step, record=beat)


@pytest.mark.parametrize(
    ("processes", "text"),
    [
        ([process(0, Phase.TRAIN, 40, 41), process(1, Phase.TRAIN, 20, 40)], "host-0: training, step 41"),
        ([process(0, Phase.SETUP, None, 0), process(1, Phase.SETUP, None)], "host-0: preparing data and model"),
        ([process(0, None, None), process(1, None, None)], ""),
        (
            [process(n, Phase.SAVE if n == 2 else Phase.TRAIN, 40) for n in range(5)],
            "host-[0,3-4]: training, step 40; host-2: saving a checkpoint, step 40",
        ),
    ],
)
def test_doing(processes: list[Process], text: str) -> None:
    """Processes that did the same are one group; the one that failed is none of them."""
    assert doing(processes, Failure("host-1", 1, "was ended by SIGKILL", 137)) == text


def test_what_an_attempt_saved_and_left_behind_is_true_when_no_other_follows() -> None:
    first, second = Failure("h1", 1, "gone", 1), Failure("h1", None, "not mounted", ExitCode.UNAVAILABLE)
    attempt = Outcome(1, first, [first], saved_step=40, left_behind=["h1: gone"])
    ended = attempt.without_restart(ExitCode.UNAVAILABLE, [second])
    assert (ended.code, ended.cause, ended.failures) == (ExitCode.UNAVAILABLE, second, [second])
    assert (ended.saved_step, ended.left_behind) == (40, ["h1: gone"])
    interrupted = attempt.without_restart(130, interrupted_by=2)
    assert (interrupted.cause, interrupted.failures, interrupted.interrupted_by) == (None, [], 2)
    assert (interrupted.saved_step, interrupted.left_behind) == (40, ["h1: gone"])
