"""Name the process that the others wait for in every step."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from podrun.launcher.attempt.stragglers import Stragglers, late_in_window
from podrun.launcher.rundir.lateness import behind_others
from podrun.runtime.contract import Phase, ProgressRecord


def beat(completed: int, waiting: float, data: float = 0.0, phase: Phase = Phase.TRAIN) -> ProgressRecord:
    return ProgressRecord(completed, phase, 4, 0, completed, completed, data, 0.0, waiting)


START = {("a", 0): beat(100, 50.0), ("b", 1): beat(100, 70.0), ("c", 2): beat(101, 60.0)}


@pytest.mark.parametrize(
    ("waits", "behind"),
    [
        ((1.0, 0.2), (0.0, 0.8)),  # of two the other one counts
        ((1.0, 0.9, 0.2), (0.0, 0.0, 0.75)),
        ((5.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)),  # one that waits long says nothing about the others
        ((1.0, 0.0, 0.0, 1.0), (0.0, 1.0, 1.0, 0.0)),  # two are late
        ((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)),  # most are: then none is
        ((0.5, 0.5), (0.0, 0.0)),
    ],
)
def test_behind_others(waits: tuple[float, ...], behind: tuple[float, ...]) -> None:
    """By the median of the others' waiting less its own."""
    assert tuple(behind_others(dict(enumerate(waits))).values()) == pytest.approx(behind)


@pytest.mark.parametrize(
    ("waits", "late"),
    [
        ((1.0, 1.0, 1.0), {}),
        ((1.0, 0.85, 0.95), {}),  # noise
        ((1.0, 0.4, 0.95), {("b", 1): 0.575}),
        ((0.0, 0.9, 1.0), {("a", 0): 0.95}),
        ((0.0, 0.0, 0.0), {}),
        ((0.006, 0.002, 0.006), {}),  # steps so short that this is what records cost
        ((0.012, 0.004, 0.012), {("b", 1): 0.008}),
    ],
)
def test_late_in_a_window(waits: tuple[float, ...], late: dict[tuple[str, int], float]) -> None:
    """More than a fifth of a step, and than 5 ms."""
    last = {
        key: beat(first.completed + 50, first.waiting + 50 * wait)
        for (key, first), wait in zip(START.items(), waits, strict=True)
    }
    assert late_in_window(START, last)[0] == pytest.approx(late)


def test_share_is_of_the_whole_step() -> None:
    """Waiting that differs by little of a step is noise, also if most of the step is spent on something else."""
    last = {("a", 0): beat(110, 51.0, data=10.0), ("b", 1): beat(110, 70.0, data=11.0)}
    assert late_in_window({key: START[key] for key in last}, last)[0] == {}


STEP = 0.3  # seconds that every process needs for a step, at least
Delay = Callable[[int, int], float]
"""Seconds that a process needs besides, by its number and that of a window of 20 steps."""


def named(delay: Delay, processes: int) -> list[str]:
    """Return who is named after each of 12 windows, by what each process waits for the slowest one; `-` for nobody."""
    watch = Stragglers()
    waited = dict.fromkeys(range(processes), 0.0)
    clock, names = 1000.0, []
    watch.see({(f"host-{n}", n): beat(0, 0.0) for n in waited}, clock)
    for window in range(1, 13):
        delays = {n: delay(n, window) for n in waited}
        longest = max(delays.values())
        clock += 20 * (STEP + longest)
        for n in waited:
            waited[n] += 20 * (STEP + longest - delays[n])
        assert watch.see({(f"host-{n}", n): beat(20 * window, waited[n]) for n in waited}, clock)
        names.append(watch.late.host if watch.late else "-")
    return names


def noise(number: int, window: int) -> float:
    """Return what losing its core for parts of a window costs a process: one in five more than a fifth of a step."""
    return STEP * random.Random(f"{number} {window}").choice([0.0, 0.02, 0.05, 0.1, 0.6])


ALWAYS_2 = ["-", "-", *["host-2"] * 10]
NOBODY = ["-"] * 12
CASES: dict[str, tuple[Delay, int, list[str]]] = {
    "a straggler": (lambda n, window: 0.1 * (n == 2), 4, ALWAYS_2),
    "a straggler on a busy machine": (lambda n, window: noise(n, window) + 0.3 * (n == 2), 4, ALWAYS_2),
    "one of two": (lambda n, window: 0.1 * (n == 1), 2, ["-", "-", *["host-1"] * 10]),
    "one of 64": (lambda n, window: noise(n, window) + 0.3 * (n == 2), 64, ALWAYS_2),
    "nobody": (lambda n, window: 0.0, 4, NOBODY),
    "noise": (noise, 4, NOBODY),
    "noise of two": (noise, 2, NOBODY),
    "now this one, now that one": (lambda n, window: 0.2 * (n == window // 2 % 4), 4, NOBODY),
    "slow once": (lambda n, window: 0.2 * (n == 2 and window <= 2), 4, NOBODY),
    "a single long step": (lambda n, window: 60 * (n == 2 and window == 5), 4, NOBODY),
    "slow from window 7 on": (lambda n, window: 0.1 * (n == 0 and window > 6), 4, ["-"] * 8 + ["host-0"] * 4),
    "slow for six windows": (
        lambda n, window: 0.1 * (n == 0 and window <= 6),
        4,
        ["-", "-", *["host-0"] * 4, *["-"] * 6],
    ),
    "less than a fifth": (lambda n, window: 0.05 * (n == 1), 4, NOBODY),
    # The same one stays named while it is late, whoever is later in a window.
    "two stragglers": (
        lambda n, window: 0.2 * (n == 1) + (0.15 if window % 3 else 0.3) * (n == 3),
        5,
        ["-", "-", *["host-3"] * 10],
    ),
    "two, of which one recovers": (
        lambda n, window: 0.25 * (n == 1 and window <= 6) + 0.2 * (n == 3),
        5,
        ["-", "-", *["host-1"] * 4, *["host-3"] * 6],
    ),
    "all but one are slow": (lambda n, window: 0.2 * (n > 0), 4, NOBODY),
}


@pytest.mark.parametrize("case", CASES)
def test_named(case: str) -> None:
    """Named is who is late in three windows in a row, until it is not."""
    delay, processes, names = CASES[case]
    assert named(delay, processes) == names


def see(watch: Stragglers, completed: int, waits: tuple[float, float], now: float, phase: Phase = Phase.TRAIN) -> bool:
    keys = (("a", 0), ("b", 1))
    return watch.see({key: beat(completed, wait, phase=phase) for key, wait in zip(keys, waits, strict=True)}, now)


def test_windows() -> None:
    """A window has 20 steps and 5 s at least, and ends while all processes train."""
    watch = Stragglers()
    assert not see(watch, 0, (0.0, 0.0), 1000.0)
    assert not see(watch, 19, (0.0, 19.0), 1100.0)  # too few steps
    assert not see(watch, 50, (0.0, 50.0), 1200.0, Phase.EVALUATE)
    assert see(watch, 50, (0.0, 50.0), 1200.0)
    assert not see(watch, 100, (0.0, 100.0), 1201.0)  # too soon
    assert see(watch, 100, (0.0, 100.0), 1210.0)
    assert watch.late is None
    assert see(watch, 150, (0.0, 150.0), 1220.0)
    assert watch.late is not None
    assert (watch.late.host, watch.late.behind, watch.late.step_seconds, watch.late.since) == ("a", 1.0, 1.0, 1000.0)
    assert see(watch, 200, (50.0, 200.0), 1230.0)
    assert watch.late is None


def test_other_processes_are_another_window() -> None:
    """A process whose beat comes for the first time, or that has ended, begins a new window."""
    watch = Stragglers()
    assert not watch.see({("a", 0): beat(0, 0.0)}, 0.0)
    assert not see(watch, 50, (0.0, 50.0), 100.0)
    assert see(watch, 90, (0.0, 90.0), 200.0)
