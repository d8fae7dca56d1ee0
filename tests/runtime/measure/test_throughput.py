"""Measurements of the training loop, on a clock that the tests move."""

from __future__ import annotations

import pytest

from podrun.runtime.measure.throughput import Clock


class Time:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def passes(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def started(time: Time, seconds_at_peak: float | None = None, unit: str = "tokens", units: int = 64) -> Clock:
    """Step 1 has just ended, after a long time."""
    clock = Clock(8, units, unit, seconds_at_peak, now=time)
    with clock.waiting():
        time.passes(100)
    clock.start(1)
    return clock


def steps(clock: Clock, time: Time, *seconds: float, first: int = 2) -> None:
    for step, duration in enumerate(seconds, first):
        time.passes(duration)
        clock.step_done(step)


def test_rates_of_the_steps_since_the_last_record(time: Time) -> None:
    """Units and examples per second, and the mean over steps; the next record knows nothing of them."""
    clock = started(time)
    steps(clock, time, 1.0, 3.0)
    found = clock.rates()
    assert (found["tokens_per_second"], found["examples_per_second"]) == (2 * 8 * 64 / 4, 2 * 8 / 4)
    assert found["seconds_per_step"] == 2.0
    steps(clock, time, 0.5, first=4)
    assert clock.rates()["seconds_per_step"] == 0.5


def test_examples_are_counted_once(time: Time) -> None:
    """There is one number if throughput is counted in examples."""
    clock = started(time, unit="examples", units=1)
    steps(clock, time, 2.0)
    assert [key for key in clock.rates() if key.endswith("_per_second")] == ["examples_per_second"]


def test_percentiles_are_durations_that_occurred(time: Time) -> None:
    """Half, and 95 of 100 steps, took no longer."""
    clock = started(time)
    steps(clock, time, *(float(n) for n in range(100, 0, -1)))
    found = clock.rates()
    assert (found["step_seconds_p50"], found["step_seconds_p95"]) == (50.0, 95.0)
    steps(clock, time, 7.0, first=102)
    found = clock.rates()
    assert (found["step_seconds_p50"], found["step_seconds_p95"]) == (7.0, 7.0)


def test_pauses_are_no_part_of_a_step(time: Time) -> None:
    """Evaluation and checkpoints between two steps count as shares of the time, and slow no step down."""
    clock = started(time)
    steps(clock, time, 2.0)
    with clock.paused("evaluation"):
        time.passes(5)
    with clock.paused("checkpoints"):
        time.passes(1)
    steps(clock, time, 2.0, first=3)
    found = clock.rates()
    assert found["seconds_per_step"] == found["step_seconds_p95"] == 2.0
    assert (found["share_in_evaluation"], found["share_in_checkpoints"]) == (0.5, 0.1)
    assert found["share_waiting_for_data"] == 0.0


def test_waiting_for_data_is_part_of_a_step(time: Time) -> None:
    """It makes the step longer, and its share grows from the first step on, not from the last record."""
    clock = started(time)
    with clock.waiting():
        time.passes(1)
    steps(clock, time, 3.0)
    found = clock.rates()
    assert (found["seconds_per_step"], found["share_waiting_for_data"]) == (4.0, 0.25)
    steps(clock, time, 4.0, first=3)
    assert clock.rates()["share_waiting_for_data"] == 0.125


def test_a_pause_that_ends_with_an_error_is_counted(time: Time) -> None:
    """The loop may go on after it."""
    clock = started(time)
    span = clock.paused("checkpoints")
    span.__enter__()
    time.passes(3)
    span.__exit__(KeyError, KeyError(), None)
    steps(clock, time, 1.0)
    assert clock.rates()["share_in_checkpoints"] == 0.75


def test_what_was_before_the_first_step_ended_does_not_count(time: Time) -> None:
    """The first step, which compiles, is in no record; neither is the wait for the first batch."""
    clock = started(time)
    clock.step_done(1)
    assert clock.rates() == {}
    steps(clock, time, 2.0)
    assert clock.rates()["share_waiting_for_data"] == 0.0


def test_utilisation(time: Time) -> None:
    """The share of the devices' peak that a step uses; not there where the peak is not known."""
    clock = started(time, seconds_at_peak=0.5)
    steps(clock, time, 1.0, 3.0)
    assert clock.rates()["mfu"] == 0.25
    clock = started(time)
    steps(clock, time, 1.0)
    assert "mfu" not in clock.rates()
