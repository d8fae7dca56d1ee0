"""Draw the history of a number as a line of small bars. PURE."""

from __future__ import annotations

import math

_BARS, _PLAIN = "▁▂▃▄▅▆▇█", "_.-=+*#"
_MOST = 512  # points that are stored, many more than a line has bars


class History:
    """Values of a number by step, thinned out so that memory is bounded."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._gap = 0.0  # minimum number of steps between two points

    def add(self, step: int, value: float) -> None:
        """Add the value of a step. After a restart, repeated steps replace the earlier ones; NaN and infinity are skipped."""
        while self._points and self._points[-1][0] >= step:
            self._points.pop()
        if not math.isfinite(value) or (self._points and step < self._points[-1][0] + self._gap):
            return
        self._points.append((step, value))
        if len(self._points) > _MOST:
            self._gap = 2 * (step - self._points[0][0]) / _MOST
            self._points = self._points[::2]

    def sparkline(self, width: int, plain: bool = False) -> str:
        """Return up to `width` bars, scaled from the lowest value to the highest; empty without values. `plain`: ASCII."""
        points = list(self._points)  # copied, because another thread may add points
        if len(points) < 2 or width < 2:
            return ""
        means = _columns(points, min(width, len(points)))
        bars = _PLAIN if plain else _BARS
        low, high = min(means), max(means)
        scale = (len(bars) - 1) / (high - low) if high > low else 0.0
        return "".join(bars[round((mean - low) * scale)] for mean in means)


def _columns(points: list[tuple[int, float]], width: int) -> list[float]:
    """Return the mean of the values in each of `width` equal ranges of steps; an empty range repeats the one before."""
    first, last = points[0][0], points[-1][0]
    columns: list[list[float]] = [[] for _ in range(width)]
    for step, value in points:
        columns[min(width - 1, (step - first) * width // (last - first + 1))].append(value)
    means: list[float] = []
    for column in columns:
        means.append(sum(column) / len(column) if column else means[-1])
    return means
