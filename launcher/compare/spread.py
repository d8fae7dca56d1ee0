"""Compute the spread of a variant's step times, and draw it as a box plot. PURE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, _HEIGHT = 1000, 20  # units of a drawing, which is scaled to the width of its column
_TICKS = 4  # maximum number of intervals between ticks
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Spread:
    """Quantiles of step times in seconds: the box spans the middle half, the whiskers the middle nine tenths."""

    low: float
    first: float
    median: float
    third: float
    high: float


def spread_of(times: Sequence[float]) -> Spread:
    """Return the spread of step times. Raises IndexError if there are none."""
    ordered = sorted(times)
    return Spread(*(_quantile(ordered, share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile by linear interpolation."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def ticks_to(highest: float) -> list[float]:
    """Return round values from 0 to at least `highest`, for the ticks of an axis."""
    rough = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough * 0.999)
    return [number * step for number in range(math.ceil(highest / step * 0.999) + 1)]


def box_svg(spread: Spread, end: float, label: str) -> str:
    """Return the spread as SVG over an axis from 0 to `end` seconds. `label`: escaped text for screen readers."""

    def x(value: float) -> float:
        return round(WIDTH * min(value, end) / end, 1)

    middle, box = _HEIGHT / 2, max(x(spread.third) - x(spread.first), 1)
    return (
        f'<svg class="box" viewBox="0 0 {WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<path d="M{x(spread.low)} {middle}H{x(spread.high)}M{x(spread.low)} 6V14M{x(spread.high)} 6V14"/>'
        f'<rect x="{x(spread.first)}" y="4" width="{box:.1f}" height="12"/>'
        f'<path class="median" d="M{x(spread.median)} 2V18"/></svg>'
    )
