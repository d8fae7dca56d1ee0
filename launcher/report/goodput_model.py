"""Model the goodput of a run whose hosts fail at random, and which resumes from its newest checkpoint. PURE.

Failures are independent of each other and come at a constant rate. The model is the renewal argument of Daly (2006, "A
higher order estimate of the optimum checkpoint interval for restart dumps"), which improves on Young (1974, "A first order
approximation to the optimum checkpoint interval"). Two things are added. A save stops training only for a moment, and is
complete only later, so a failure in between loses two intervals. And a failure while the run starts again costs another
start, but is noticed before the next one; after several attempts without a new checkpoint podrun waits before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..pod.restart_delay import LONGEST_AFTER, restart_delay


@dataclass(frozen=True)
class Times:
    """The seconds that each part of a run takes."""

    step: float
    save: float
    """For which training stops to save."""
    write: float
    """From then on until the checkpoint is complete, while training goes on."""
    detect: float
    """From a failure to the decision to start again."""
    start: float
    """From that decision, or the delay after it, until the processes restore their state."""
    restore: float
    compile: float
    """Until training goes on."""

    @property
    def until_training(self) -> float:
        """Return the seconds of a start, in which another failure costs another start."""
        return self.start + self.restore + self.compile


def goodput(times: Times, rate: float, interval: float) -> float:
    """Return the expected share of the time in training whose steps are kept, from 0 to 1.

    Args:
        times: the seconds of each part.
        rate: failures of the whole pod per second.
        interval: seconds of training between two saves.
    """
    if not rate:
        return interval / (interval + times.save)
    try:
        saves = math.exp(-rate * times.write) / math.expm1(rate * (interval + times.save))
        cycle = math.exp(rate * times.until_training) * (1 / rate + times.detect + mean_delay(times, rate, interval))
    except OverflowError:  # it never comes to a save, or never to training
        return 0.0
    return min(1.0, interval * saves / cycle)


def mean_delay(times: Times, rate: float, interval: float) -> float:
    """Return the mean delay before a start in seconds, by the restart policy. The arguments are those of `goodput`."""
    idle = -math.expm1(-rate * (times.until_training + interval + times.save + times.write))
    growing = range(2, LONGEST_AFTER)
    delays = sum((1 - idle) * idle**count * restart_delay(count) for count in growing)
    return delays + idle**LONGEST_AFTER * restart_delay(LONGEST_AFTER)


def best_interval(times: Times, rate: float) -> float:
    """Return the seconds of training between two saves that give the most goodput, without delays before starts."""
    low, high = 0.0, 1 / rate
    for _ in range(100):  # at the best one, 1 - exp(-rate * (interval + save)) = rate * interval
        middle = (low + high) / 2
        if -math.expm1(-rate * (middle + times.save)) > rate * middle:
            low = middle
        else:
            high = middle
    return max((low + high) / 2, times.write)  # the next save waits for the one before


def best_steps(times: Times, rate: float) -> int:
    """Return the number of steps between two saves that gives the most goodput."""
    least = max(1, math.ceil(times.write / times.step))

    def value(steps: int) -> tuple[float, int]:
        return goodput(times, rate, steps * times.step), -steps

    low, high = least, max(least, math.ceil(best_interval(times, rate) / times.step))  # delays only make it shorter
    while high - low > 2:
        third = (high - low) // 3
        if value(low + third) < value(high - third):
            low += third
        else:
            high -= third
    return max(range(low, high + 1), key=value)


def young_interval(times: Times, rate: float) -> float:
    """Return Young's first order approximation of the best interval, in seconds."""
    return math.sqrt(2 * times.save / rate)


def daly_interval(times: Times, rate: float) -> float:
    """Return Daly's higher order estimate of the best interval, in seconds: his equation 37."""
    if times.save * rate >= 2:
        return 1 / rate
    root = math.sqrt(times.save * rate / 2)
    return math.sqrt(2 * times.save / rate) * (1 + root / 3 + root * root / 9) - times.save
