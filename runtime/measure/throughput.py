"""Measure the training loop: its throughput, and the time that it waits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType

_RARE = ("callbacks", "verification")
PAUSES = ("evaluation", "checkpoints", *_RARE)
"""Work between steps, whose time is not counted as step time."""
_WAITING = "waiting_for_data"


class Clock:
    """Measure throughput since the last record, and the shares of time spent waiting since the first step.

    Args:
        batch_size: number of examples in a step.
        units_per_example: number of units in an example, for example tokens.
        unit: unit of throughput: `examples` or `tokens`.
        seconds_at_peak: time of a step if the devices computed its FLOPs at their peak; None if the peak is unknown.
        now: returns the seconds of a monotonic clock.
    """

    def __init__(
        self,
        batch_size: int,
        units_per_example: int,
        unit: str,
        seconds_at_peak: float | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._examples = batch_size
        self._units = batch_size * units_per_example
        self._unit = unit
        self._seconds_at_peak = seconds_at_peak
        self._now = now
        self._spans = {name: _Span(now) for name in (_WAITING, *PAUSES)}
        self._steps: list[float] = []  # seconds of each step since the last record
        self.start(0)

    def start(self, step: int) -> None:
        """Start the clock at the end of step `step`, so that earlier work, such as compilation, is not counted."""
        self._step = step
        self._started = self._last = self._now()
        self._paused = 0.0
        self._steps.clear()
        for span in self._spans.values():
            span.seconds = 0.0

    def waiting(self) -> _Span:
        """Count the time inside as waiting for data: `with clock.waiting(): batches.get()`."""
        return self._spans[_WAITING]

    def paused(self, what: str) -> _Span:
        """Count the time inside as a pause, not as part of a step: `with clock.paused("evaluation"):`, one of `PAUSES`."""
        return self._spans[what]

    def step_done(self, step: int) -> None:
        """Record that step `step` is complete. Call it for each step as soon as it is known to be complete."""
        if step <= self._step:
            return
        paused = sum(self._spans[name].seconds for name in PAUSES)
        now = self._now()
        self._steps.append(now - self._last - (paused - self._paused))
        self._step, self._last, self._paused = step, now, paused

    def rates(self) -> dict[str, float]:
        """Return the rates over the steps completed since the last call; empty if there were none.

        Rates are per second over all devices, times are in seconds, shares are of the time since `start`, and `mfu` (model
        FLOPs utilisation) is from 0 to 1.
        """
        seconds = sum(self._steps)
        if not self._steps or seconds <= 0:
            return {}
        count, ordered = len(self._steps), sorted(self._steps)
        self._steps.clear()
        rates = {
            f"{self._unit}_per_second": count * self._units / seconds,
            "examples_per_second": count * self._examples / seconds,
            "seconds_per_step": seconds / count,
            "step_seconds_p50": _percentile(ordered, 0.5),
            "step_seconds_p95": _percentile(ordered, 0.95),
        }
        if self._seconds_at_peak:
            rates["mfu"] = self._seconds_at_peak / rates["seconds_per_step"]
        return {**rates, **self._shares()}

    def _shares(self) -> dict[str, float]:
        total = self._now() - self._started
        pauses = [name for name in PAUSES if name not in _RARE or self._spans[name].seconds]  # few jobs have these
        names = {_WAITING: f"share_{_WAITING}", **{name: f"share_in_{name}" for name in pauses}}
        return {key: self._spans[name].seconds / total for name, key in names.items()}


class _Span:
    """A context manager that sums the time spent inside, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began = 0.0
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = self._now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += self._now() - self._began


def _percentile(ordered: list[float], share: float) -> float:
    """Return the percentile of sorted values by the nearest-rank method; `share` is from 0 to 1."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
