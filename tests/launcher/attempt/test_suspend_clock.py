"""Time that passes only while its reader runs."""

from __future__ import annotations

from dataclasses import dataclass

from podrun.launcher.attempt.suspend_clock import SuspendClock


@dataclass
class Time:
    """A machine's clock, which a test moves."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_sleep_is_no_time_that_has_passed() -> None:
    """A gap between two looks beyond the limit is a sleep, and is told for as long as it may explain something."""
    time = Time()
    clock = SuspendClock(5.0, time)
    for _ in range(10):
        time.now += 4.0
        awake = clock.now()
    assert (awake, clock.slept(60.0)) == (40.0, 0.0)
    time.now += 3600.0
    assert (clock.now(), clock.slept(60.0)) == (40.0, 3600.0)
    time.now += 4.0
    assert (clock.now(), clock.slept(60.0)) == (44.0, 3600.0)
    time.now += 60.0
    assert clock.slept(60.0) == 0.0


def test_a_machine_that_has_just_started() -> None:
    """No sleep is made up for a clock that begins near zero; a gap of just the limit is none."""
    time = Time(now=1.0)
    clock = SuspendClock(5.0, time)
    assert clock.slept(60.0) == 0.0 and clock.now() == 0.0
    time.now += 5.0
    assert (clock.now(), clock.slept(60.0)) == (5.0, 0.0)
    time.now += 5.5
    assert (clock.now(), clock.slept(0.0)) == (5.0, 5.5)
    time.now += 3.0
    assert clock.slept(3.0) == 5.5 and clock.slept(2.5) == 0.0
