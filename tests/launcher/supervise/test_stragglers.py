"""Which process the others wait for in every step."""

from __future__ import annotations

import pytest

from podrun.launcher.supervise.stragglers import Stragglers, latest
from podrun.runtime.contract import Beat, Phase


def beat(completed: int, waiting: float, data: float = 0.0, phase: Phase = Phase.TRAIN) -> Beat:
    return Beat(completed, phase, 4, 0, completed, completed, data, 0.0, waiting)


START = {("a", 0): beat(100, 50.0), ("b", 1): beat(100, 70.0), ("c", 2): beat(101, 60.0)}


@pytest.mark.parametrize(
    ("waits", "late"),
    [
        ((1.0, 1.0, 1.0), None),
        ((1.0, 0.85, 0.95), None),  # noise
        ((1.0, 0.4, 0.95), ("b", 1, 0.6)),
        ((0.0, 0.9, 1.0), ("a", 0, 1.0)),
        ((0.0, 0.0, 0.0), None),
    ],
)
def test_latest(waits: tuple[float, ...], late: tuple[str, int, float] | None) -> None:
    """Who waits least for the steps is late, by what the others wait longer: more than a fifth of a step."""
    last = {
        key: beat(first.completed + 50, first.waiting + 50 * wait)
        for (key, first), wait in zip(START.items(), waits, strict=True)
    }
    seen = latest(START, last)
    assert (seen and (seen.host, seen.process, pytest.approx(seen.behind))) == late


def test_share_is_of_the_whole_step() -> None:
    """Waiting that differs by little of a step is noise, also if most of the step is spent on something else."""
    last = {("a", 0): beat(110, 51.0, data=10.0), ("b", 1): beat(110, 70.0, data=11.0)}
    assert latest({key: START[key] for key in last}, last) is None


def see(watch: Stragglers, completed: int, waits: tuple[float, float], now: float, phase: Phase = Phase.TRAIN) -> bool:
    keys = (("a", 0), ("b", 1))
    return watch.see({key: beat(completed, wait, phase=phase) for key, wait in zip(keys, waits, strict=True)}, now)


def test_once_or_always() -> None:
    """One late window is once, three in a row are always; it ends with a window in which the process is not late."""
    watch = Stragglers()
    assert not see(watch, 0, (0.0, 0.0), 1000.0)
    assert not see(watch, 19, (0.0, 19.0), 1100.0)  # too few steps
    assert not see(watch, 50, (0.0, 50.0), 1200.0, Phase.EVALUATE)
    assert see(watch, 50, (0.0, 50.0), 1200.0)
    assert watch.late is not None
    assert (watch.late.host, watch.late.since, watch.late.always) == ("a", 1000.0, False)
    assert not see(watch, 100, (0.0, 100.0), 1201.0)  # too soon
    assert see(watch, 100, (0.0, 100.0), 1210.0)
    assert not watch.late.always
    assert see(watch, 150, (0.0, 150.0), 1220.0)
    assert watch.late is not None
    assert watch.late.always
    assert watch.late.since == 1000.0
    assert see(watch, 200, (50.0, 200.0), 1230.0)
    assert watch.late is None


def test_other_processes_are_another_window() -> None:
    """A process whose beat comes for the first time, or that has ended, begins a new window."""
    watch = Stragglers()
    assert not watch.see({("a", 0): beat(0, 0.0)}, 0.0)
    assert not see(watch, 50, (0.0, 50.0), 100.0)
    assert see(watch, 90, (0.0, 90.0), 200.0)
