"""Runs that are simulated on a virtual clock: hosts fail at random, and podrun's own policy decides whether they go on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from podrun.launcher.report.goodput_model import Times
from podrun.launcher.run.policy import Attempt, Budget, Ending, Stop, decide
from podrun.runtime.contract import ExitCode

HOUR = 3600.0
LARGE = Times(step=10.0, save=30.0, write=120.0, detect=21.0, start=90.0, restore=60.0, compile=120.0)
"""A large model on many hosts."""
CASES = {
    "large": (LARGE, 1 / (2 * HOUR)),
    "rare": (LARGE, 1 / (100 * HOUR)),
    "often": (Times(1.0, 5.0, 2.0, 21.0, 20.0, 10.0, 30.0), 1 / (0.25 * HOUR)),
    "hard": (Times(1.0, 5.0, 2.0, 21.0, 20.0, 10.0, 30.0), 1 / 60),
    "slow saves": (Times(2.0, 200.0, 0.0, 15.0, 30.0, 200.0, 60.0), 1 / HOUR),
}
"""Times, and failures of a pod per second."""

Tell = Callable[[str, float, dict[str, Any]], None]
"""Called with the kind of an event, its time, and its fields."""


@dataclass(frozen=True)
class Simulated:
    """A run that has ended."""

    kept: float
    """Seconds of training whose steps were kept."""
    seconds: float
    failures: int

    @property
    def goodput(self) -> float:
        return self.kept / self.seconds


def nothing(kind: str, time: float, fields: dict[str, Any]) -> None:
    """Record nothing."""


def at_random(rate: float, seed: int) -> Iterator[float]:
    """Yield the seconds until each next failure of a pod."""
    chance = random.Random(seed)
    while True:
        yield chance.expovariate(rate)


def evenly(rate: float, count: int, seed: int) -> Iterator[float]:
    """Yield `count` quantiles of the same distribution in a random order: a mean over them has next to no noise."""
    times = [-math.log1p(-(number + 0.5) / count) / rate for number in range(count)]
    random.Random(seed).shuffle(times)
    yield from times


def simulate(
    times: Times, every: int, failures: Iterator[float], steps: float = math.inf, tell: Tell = nothing
) -> Simulated:
    """Run until `steps` are done, or no failure is left.

    Args:
        times: the seconds of each part.
        every: steps between two saves.
        failures: seconds from each start until the next failure.
        steps: number of steps of the run.
        tell: gets the events of the run.
    """
    clock, saved = 0.0, 0
    attempts: list[Attempt] = []
    period = every * times.step + times.save
    for until in failures:
        trains = until - times.until_training
        needed = math.inf if steps == math.inf else math.ceil((steps - saved) / every)
        saves = min(needed, max(0, math.floor((trains - times.write) / period)))
        _tell_attempt(tell, times, clock, saved, every, trains, int(saves))
        saved += int(saves) * every
        if saves == needed:
            return Simulated(
                saved * times.step, clock + times.until_training + saves * period + times.write, len(attempts)
            )
        clock += until + times.detect
        known = saved or None
        attempts.append(Attempt(Ending.LOST, ExitCode.UNAVAILABLE, "is down", trained=trains > 0, saved=known))
        # Only the last ones with progress matter for the delay; a budget that large is never used up.
        decision = decide(attempts[-20:], Budget(failures=10**9, preemptions=0))
        assert not isinstance(decision, Stop), decision
        tell("restart", clock, {"ending": "lost", "saved": known, "delay": decision.after})
        clock += decision.after
    return Simulated(saved * times.step, clock, len(attempts))


def _tell_attempt(tell: Tell, times: Times, begin: float, saved: int, every: int, trains: float, saves: int) -> None:
    if tell is nothing:
        return
    tell("start", begin, {"attempt": 0})
    if trains <= 0:
        return
    at = begin + times.start
    tell("phase", at, {"phase": "restore"})
    if saved:
        tell("resume", at, {"step": saved})
    tell("phase", at + times.restore, {"phase": "compile"})
    at += times.restore + times.compile
    end = at + trains
    tell("phase", at, {"phase": "train"})
    step, complete = saved, math.inf
    while True:
        at += times.step
        if complete < min(at, end):
            tell("checkpoint", complete, {"step": step - (step - saved) % every})
            complete = math.inf
        if at > end:
            return
        step += 1
        tell("step", at, {"step": step, "steps": None})
        if (step - saved) % every == 0 and at + times.save < end:
            tell("phase", at, {"phase": "save"})
            at += times.save
            tell("phase", at, {"phase": "train"})
            complete = at + times.write
