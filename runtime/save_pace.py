"""Decide when a job with `checkpoint.every: auto` saves: as often as costs at most a share of its time. A value without I/O.

All processes look at the same steps whether to save, and process 0 decides: only its clock counts. The next such step is
agreed on at the one before, a whole interval ahead, so that nothing is exchanged in the steps between. To bound the overhead
in place of choosing an interval is the idea of CheckFreq (Mohan, Phanishayee and Chidambaram, FAST 2021); the best interval
by Young and Daly needs the time between two failures, which no job knows at its start (docs/forecast.md).
"""

from __future__ import annotations

import math
import statistics
from collections import deque

SHARE = 0.01
"""Share of a job's time for which training may stop to save."""
FIRST = 10
"""Steps before the first save of a process, which measures what a save costs."""
_RECENT = 5  # saves whose cost counts: the lower median of them, so that one slow save does not delay the next ones
_LOOK_AGAIN = 0.1  # share of the steps since the last save after which a save that is not complete is looked at again
_LONGEST = 2**31 - 1  # a step is an int32


class SavePace:
    """The pace at which a training job saves."""

    def __init__(self, eval_every: int, step: int, now: float) -> None:
        """Begin after a step, with the next one to look at `FIRST` steps later.

        Args:
            eval_every: steps between two evaluations; 0: none. A save waits for the next one if it is near, to have its loss.
            step: number of the first step done.
            now: time in seconds, as in the other methods.
        """
        self._eval_every = eval_every
        self._costs: deque[float] = deque(maxlen=_RECENT)
        self._last, self._since = step, now
        self.next = step + FIRST
        """Step after which the processes look whether to save."""

    def saved(self, step: int, begun: float, now: float) -> int:
        """Record a save for which training has stopped from `begun` to `now`. Returns the steps until the next one."""
        seconds = max(1e-9, begun - self._since) / max(1, step - self._last)
        self._costs.append(now - begun)
        self._last, self._since = step, now
        return self._until(step, math.ceil(statistics.median_low(self._costs) / SHARE / seconds))

    def waits(self, step: int) -> int:
        """Return after how many steps to look again, because the last save is not complete after this one."""
        return self._until(step, math.ceil((step - self._last) * _LOOK_AGAIN))

    def _until(self, step: int, least: int) -> int:
        """Return a number of steps from `least` to twice that: to an evaluation, if there is one."""
        least = min(max(1, least), _LONGEST)
        if self._eval_every:
            steps = -(-(step + least) // self._eval_every) * self._eval_every - step
            if steps < 2 * least:
                return steps
        return least
