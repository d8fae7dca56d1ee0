"""Estimate how long the other processes wait for each process in a step. PURE.

All processes end a step together, so its length does not tell which one is slow. But the slowest process arrives last and
waits least: the others wait for it by the median of their waiting times minus its own. The median is used because, of many
processes on a busy machine, one always waits much longer by chance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping
from typing import TypeVar

from .events import LateEvent

Key = TypeVar("Key", bound=Hashable)


def behind_others(waits: Mapping[Key, float]) -> dict[Key, float]:
    """Return, for each process, the median of the others' waiting times minus its own, or 0 if that is negative.

    `waits` has at least two processes. The result has the unit of `waits`.
    """
    ordered = sorted(waits.values())
    return {key: max(0.0, _median_without(ordered, wait) - wait) for key, wait in waits.items()}


def _median_without(ordered: list[float], value: float) -> float:
    """Return the median of sorted values without one occurrence of `value`."""
    left_out = bisect_left(ordered, value)
    rest = len(ordered) - 1
    middle = ((rest - 1) // 2, rest // 2)
    low, high = (ordered[at + (at >= left_out)] for at in middle)
    return (low + high) / 2


def describe_late(late: LateEvent) -> str:
    """Return `host-1 (process 1) keeps the others waiting: 0.51 s of each step of 0.60 s, 85 %`."""
    seconds = f"{late['behind']:.3g} s of each step of {late['step_seconds']:.3g} s, {100 * late_share(late):.0f} %"
    return f"{late['host']} (process {late['process']}) keeps the others waiting: {seconds}"


def late_share(late: LateEvent) -> float:
    """Return the share of a step, from 0 to 1, that the other processes spend waiting for the late one."""
    return min(1.0, late["behind"] / late["step_seconds"]) if late["step_seconds"] > 0 else 1.0
