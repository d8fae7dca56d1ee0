"""PURE: compute how the step times of a variant are spread, and draw them as a box with whiskers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, _HEIGHT = 1000, 20  # units of a drawing, which is stretched to the width of its column
_TICKS = 4  # spaces between the ticks of an axis, at most
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Spread:
    """Step times in seconds: the middle half is the box, the middle nine tenths are the whiskers."""

    low: float
    first: float
    median: float
    third: float
    high: float


def spread_of(times: Sequence[float]) -> Spread:
    """Return the spread of some times. Raises IndexError without any."""
    ordered = sorted(times)
    return Spread(*(_quantile(ordered, share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile, between two values the one on the line through them."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def ticks_to(highest: float) -> list[float]:
    """Return the ticks of an axis from 0 to `highest` or more, at round values."""
    rough = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough * 0.999)
    return [number * step for number in range(math.ceil(highest / step * 0.999) + 1)]


def box_svg(spread: Spread, end: float, label: str) -> str:
    """Return an SVG of the spread over an axis from 0 to `end` seconds. `label` is escaped text that says the same."""

    def x(value: float) -> float:
        return round(WIDTH * min(value, end) / end, 1)

    middle, box = _HEIGHT / 2, max(x(spread.third) - x(spread.first), 1)
    return (
        f'<svg class="box" viewBox="0 0 {WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<path d="M{x(spread.low)} {middle}H{x(spread.high)}M{x(spread.low)} 6V14M{x(spread.high)} 6V14"/>'
        f'<rect x="{x(spread.first)}" y="4" width="{box:.1f}" height="12"/>'
        f'<path class="median" d="M{x(spread.median)} 2V18"/></svg>'
    )
