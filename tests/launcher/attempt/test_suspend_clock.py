"""Time that passes only while its reader runs, and failures that wait for it."""

from __future__ import annotations

import signal
from dataclasses import replace

from podrun.launcher.attempt.cause import from_exit
from podrun.launcher.attempt.failures import SAVE_GRACE, SETTLE, Failures
from podrun.launcher.attempt.suspend_clock import AwakeClock
from podrun.runtime.contract import Phase

from .clock import LOST, RAISED, SAVED, Time


def test_a_sleep_is_no_time_that_has_passed() -> None:
    """A gap between two looks beyond the limit is a sleep, and is told for as long as it may explain something."""
    time = Time()
    clock = AwakeClock(5.0, time)
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


def test_a_consequence_waits_for_its_cause_and_not_while_the_launcher_sleeps() -> None:
    """After a sleep it still waits for what the hosts have to say."""
    time = Time()
    clock = AwakeClock(5.0, time)
    failures = Failures(clock)
    failures.add(LOST)
    assert not failures.decided(saving=False)
    time.now += 3600.0
    assert not failures.decided(saving=False)
    time.now += SETTLE + 0.1
    assert failures.decided(saving=False)


def test_a_cause_decides_at_once() -> None:
    """Nothing is waited for once it is known."""
    failures = Failures(AwakeClock(5.0, Time()))
    assert not failures.decided(saving=False)
    failures.add(LOST)
    failures.add(RAISED)
    assert failures.decided(saving=True)


def test_who_was_asked_from_outside_may_end_its_save() -> None:
    """A save may take longer than the wait for a cause; one that never ends is cut off."""
    time = Time()
    failures = Failures(AwakeClock(SAVE_GRACE * 2, time))
    failures.add(SAVED)
    time.now += SETTLE + 1.0
    assert failures.decided(saving=False)
    assert not failures.decided(saving=True)
    time.now += SAVE_GRACE
    assert failures.decided(saving=True)


def test_what_arrives_late_is_judged_by_what_its_agent_says() -> None:
    """An error that came over a connection made anew is the cause unless its process had been asked to stop by then."""
    for asked, cause in ((False, RAISED), (True, LOST)):
        failures = Failures(AwakeClock(5.0, Time()))
        failures.add(LOST)
        failures.stop(user=False)
        failures.add(RAISED)
        failures.exited("host-1", 1, asked=asked)
        assert replace(failures.cause(2, 0.0), late=False) == cause


def test_nothing_is_a_cause_after_ctrl_c() -> None:
    """A failure while the user's stop goes on is not why the run ended."""
    failures = Failures(AwakeClock(5.0, Time()))
    failures.stop(user=True)
    failures.add(from_exit("host-1", 1, -signal.SIGKILL, 4, Phase.TRAIN))
    failures.exited("host-1", 1, asked=False)
    assert failures.only_consequences


def test_a_machine_that_has_just_started() -> None:
    """No sleep is made up for a clock that begins near zero; a gap of just the limit is none."""
    time = Time(now=1.0)
    clock = AwakeClock(5.0, time)
    assert clock.slept(60.0) == 0.0 and clock.now() == 0.0
    time.now += 5.0
    assert (clock.now(), clock.slept(60.0)) == (5.0, 0.0)
    time.now += 5.5
    assert (clock.now(), clock.slept(0.0)) == (5.0, 5.5)
    time.now += 3.0
    assert clock.slept(3.0) == 5.5 and clock.slept(2.5) == 0.0
