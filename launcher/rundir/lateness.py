"""PURE: find how long the others wait for each process in a step.

All processes end a step together, so its length does not say who is slow. But who comes to it last waits least for it: the
others wait for a process by the median of their waiting less its own. The longest waiting would not do: of many processes on
a busy machine one always waits longest by chance, and another least.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def behind_others(waits: Mapping[Key, float]) -> dict[Key, float]:
    """Return by how much less each process waits than the median of the others, in the unit of `waits`; 0 if it waits more.

    There must be at least two processes.
    """
    ordered = sorted(waits.values())
    return {key: max(0.0, _median_without(ordered, wait) - wait) for key, wait in waits.items()}


def _median_without(ordered: list[float], value: float) -> float:
    """Return the median of sorted values, one of which, `value`, does not count."""
    left_out = bisect_left(ordered, value)
    rest = len(ordered) - 1
    middle = ((rest - 1) // 2, rest // 2)
    low, high = (ordered[at + (at >= left_out)] for at in middle)
    return (low + high) / 2
