"""Encode the data of the page's scripts. Numbers become base64 of binary arrays, which browsers decode fast. PURE."""

from __future__ import annotations

import base64
import json
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from .model import Chart, Series, Strips


def drawn_data(shown: Sequence[Chart], strips: Sequence[Strips]) -> dict[str, Any]:
    """Return the data of all charts and strips, as JSON values."""
    places: dict[str, int] = {}  # many curves share their x values
    charts = [_chart(chart, places) for chart in shown]
    return {"places": list(places), "charts": charts, "strips": [_strips(one) for one in strips]}


def in_element(data: Any) -> str:
    """Return JSON that is safe inside a script element, whatever texts it contains."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    # `</script>` and `<!--` would end the element; in JSON these characters occur only in strings
    for character in "<>&":
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


_LARGEST = 3.4e38  # largest 32-bit float


def numbers(code: str, values: Sequence[float]) -> str:
    """Return base64 of little-endian floats with 32 (`f`) or 64 (`d`) bits."""
    if code == "f":
        values = [min(_LARGEST, max(-_LARGEST, value)) for value in values]
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()
