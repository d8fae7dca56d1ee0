"""Encode the data of the page's scripts. Numbers become base64 of binary arrays, which browsers decode fast. PURE."""

from __future__ import annotations

import base64
import json
import sys
from array import array
from collections.abc import Sequence
from typing import Any, TypedDict

from .model import Chart, Progress, Series, Strips


class SeriesData(TypedDict):
    """A curve. Its numbers are base64 of binary arrays."""

    name: str
    style: str
    colour: int | None
    x: int
    """Index of its x values in `PageData.places`."""
    y: str
    low: str | None
    high: str | None
    progress: int | None
    """Index in `PageData.progress`; None: it is drawn over steps only."""


class ProgressData(TypedDict):
    """When each step of a run was done, as indices in `PageData.places`."""

    steps: int
    seconds: int
    tokens: int | None


class ChartData(TypedDict):
    """Curves with common axes."""

    key: str
    unit: str
    axis: str
    smooth: bool
    most: float | None
    marks: list[tuple[float, str]]
    series: list[SeriesData]


class StripsData(TypedDict):
    """Rows over the same time axis: each has a name and a flat list of (index of a kind, number of columns) pairs."""

    key: str
    kinds: list[str]
    seconds: float
    columns: int
    rows: list[tuple[str, list[int]]]


class PageData(TypedDict):
    """The data of a page, in the form that `charts.js` and `strips.js` read."""

    places: list[str]
    """Lists of x values. Many curves share one."""
    progress: list[ProgressData]
    charts: list[ChartData]
    strips: list[StripsData]


AXES = ("step", "time", "trial")
"""The axes that a chart may have."""
MOST_CHARTS = 80
"""Maximum number of charts of each axis on a page."""


def drawn_charts(charts: Sequence[Chart]) -> list[Chart]:
    """Return the charts that a page draws: the first of each axis."""
    return [chart for axis in AXES for chart in [c for c in charts if c.axis == axis][:MOST_CHARTS]]


def drawn_data(shown: Sequence[Chart], strips: Sequence[Strips]) -> PageData:
    """Return the data of the charts that are drawn, and of all strips, as JSON values."""
    places: dict[str, int] = {}  # many curves share their x values
    drawn = drawn_charts(shown)
    runs = {id(one.progress): one.progress for chart in drawn for one in chart.series if one.progress is not None}
    numbers_of_runs = {key: number for number, key in enumerate(runs)}
    charts = [_chart(chart, places, numbers_of_runs) for chart in drawn]
    progress = [_progress(one, places) for one in runs.values()]
    return {"places": list(places), "progress": progress, "charts": charts, "strips": [_strips(one) for one in strips]}


def in_element(data: Any) -> str:
    """Return JSON that is safe inside a script element, whatever texts `data` contains."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    # `</script>` and `<!--` would end the element; in JSON these characters occur only in strings
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _place(values: Sequence[float], places: dict[str, int]) -> int:
    """Return the index of the list in `places`, to which it is added if it is not there."""
    return places.setdefault(numbers("d", values), len(places))


def _progress(one: Progress, places: dict[str, int]) -> ProgressData:
    tokens = None if one.tokens is None else _place(one.tokens, places)
    return {"steps": _place(one.steps, places), "seconds": _place(one.seconds, places), "tokens": tokens}


def _chart(chart: Chart, places: dict[str, int], runs: dict[int, int]) -> ChartData:
    return {
        "key": chart.key,
        "unit": chart.unit,
        "axis": chart.axis,
        "smooth": chart.smooth,
        "most": chart.most,
        "marks": [(mark.x, mark.kind) for mark in chart.marks],
        "series": [_series(series, places, runs) for series in chart.series],
    }


def _series(series: Series, places: dict[str, int], runs: dict[int, int]) -> SeriesData:
    return {
        "name": series.name,
        "style": series.style,
        "colour": series.colour,
        "x": _place(series.x, places),
        "y": numbers("f", series.y),
        "low": None if series.low is None else numbers("f", series.low),
        "high": None if series.high is None else numbers("f", series.high),
        "progress": runs.get(id(series.progress)),
    }


def _strips(strips: Strips) -> StripsData:
    return {
        "key": strips.key,
        "kinds": strips.kinds,
        "seconds": strips.seconds,
        "columns": strips.columns,
        "rows": [(row.name, [number for pair in row.runs for number in pair]) for row in strips.rows],
    }


_LARGEST = 3.4e38  # largest 32-bit float


def numbers(code: str, values: Sequence[float]) -> str:
    """Return base64 of little-endian floats with 32 (`f`) or 64 (`d`) bits."""
    if code == "f":
        values = [min(_LARGEST, max(-_LARGEST, value)) for value in values]
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()
