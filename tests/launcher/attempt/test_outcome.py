"""Say what is to be said of the processes that did not fail first."""

from __future__ import annotations

import pytest

from podrun.launcher.attempt.cause import Failure
from podrun.launcher.attempt.outcome import Process, doing
from podrun.runtime.contract import Phase, ProgressRecord


def process(number: int, phase: Phase | None, step: int | None, arrived: int | None = None) -> Process:
    beat = None if arrived is None or phase is None else ProgressRecord(1, phase, 4, 0, arrived, 0)
    return Process(f"host-{number}", number, phase, step, beat=beat)


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
