"""Encode what the page's scripts draw: numbers as base64 of binary arrays, so that a browser need not parse them. PURE."""

from __future__ import annotations

import base64
import json
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from .model import Chart, Series, Strips


def drawn_data(shown: Sequence[Chart], strips: Sequence[Strips]) -> dict[str, Any]:
    """Return what the scripts draw."""
    places: dict[str, int] = {}  # many curves have points at the same places
    charts = [_chart(chart, places) for chart in shown]
    return {"places": list(places), "charts": charts, "strips": [_strips(one) for one in strips]}


def in_element(data: Any) -> str:
    """Return JSON that may stand in a script element, whatever its texts say."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # `</script>` and `<!--` would end the element; JSON has these only in its strings
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _chart(chart: Chart, places: dict[str, int]) -> dict[str, Any]:
    return {
        "key": chart.key,
        "unit": chart.unit,
        "axis": chart.axis,
        "smooth": chart.smooth,
        "most": chart.most,
        "marks": [[mark.x, mark.kind] for mark in chart.marks],
        "series": [_series(series, places) for series in chart.series],
    }


def _series(series: Series, places: dict[str, int]) -> dict[str, Any]:
    return {
        "name": series.name,
        "style": series.style,
        "colour": series.colour,
        "x": places.setdefault(numbers("d", series.x), len(places)),
        "y": numbers("f", series.y),
        "low": None if series.low is None else numbers("f", series.low),
        "high": None if series.high is None else numbers("f", series.high),
    }


def _strips(strips: Strips) -> dict[str, Any]:
    return {
        "key": strips.key,
        "kinds": strips.kinds,
        "seconds": strips.seconds,
        "columns": strips.columns,
        "rows": [[row.name, [number for pair in row.runs for number in pair]] for row in strips.rows],
    }


_LARGEST = 3.4e38  # of a float with 32 bits


def numbers(code: str, values: Sequence[float]) -> str:
    """Return base64 of little-endian floats with 32 (`f`) or 64 (`d`) bits."""
    if code == "f":
        values = [min(_LARGEST, max(-_LARGEST, value)) for value in values]
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()
