"""The page of a run: new steps are sent at once, the other parts every few seconds."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from podrun.runtime.events import EventKind

from ..report.curves import curves
from ..report.encode import drawn_data
from ..report.make_page import begin_of, evaluations_of, marks_of, page_of_records, step_tiles
from ..report.model import Chart
from ..report.records import StepRecord
from ..report.write_html import html_of, parts_of, tiles_of
from ..rundir.events import Event
from .feed import Message
from .follower import Follower
from .live import live_run

_PACE, _IDLE = 2.0, 5.0  # seconds between two updates of the other parts: with new events, and without
_SHARE = 50  # rendering them may take this fraction (1/N) of the time
_AT_ONCE = {EventKind.START, EventKind.RESTART, EventKind.END}


class RunSource:
    """Page of one run."""

    def __init__(self, follower: Follower) -> None:
        self.name = follower.directory.run_id
        self._follower = follower
        self._generation = 0
        self._steps_sent = self._events_sent = 0
        self._state = "running"
        self._parts: dict[str, str] = {}
        self._tiles: list[tuple[str, str]] = []
        self._curves: set[tuple[str, str]] = set()
        """(chart, name) of each curve on the page."""
        self._made, self._due = -math.inf, -math.inf
        self._is_removed = False

    def poll(self) -> Message:
        if self._is_removed:
            return {}
        with self._follower.lock:
            if self._follower.is_removed:
                self._is_removed = True
                return {"removed": f"The folder of the run has been removed ({self._follower.directory.path})."}
            self._follower.advance()
            return self._changes()

    def html(self, number: int) -> str:
        with self._follower.lock:
            records = self._follower.records  # other pages of the run may have advanced the follower since
            shown = replace(
                records, steps=records.steps[: self._steps_sent], events=records.events[: self._events_sent]
            )
            page = page_of_records(self._follower.directory, shown)
        return html_of(page, live_run(self.name, number, page.verdict.state))

    def _changes(self) -> Message:
        records = self._follower.records
        is_new = self._generation != self._follower.generation
        if is_new:
            self._generation, self._steps_sent, self._events_sent = self._follower.generation, 0, 0
        steps, events = records.steps[self._steps_sent :], records.events[self._events_sent :]
        self._steps_sent, self._events_sent = len(records.steps), len(records.events)
        charts = curves(steps, evaluations_of(events), [], records.is_program, begin_of(records))
        whole = is_new or not self._curves >= _names(charts)
        message: Message = {} if whole else self._points(charts, events)
        if whole or self._is_due(bool(steps or events), events):
            message |= self._whole(whole)
        elif steps:
            message["parts"] = {"tiles": self._new_tiles(steps, events)}
        return message

    def _points(self, charts: list[Chart], events: list[Event]) -> Message:
        """Return the new points of the page's curves."""
        message: Message = {}
        if charts:
            message["points"] = drawn_data(charts, [])
        if marks := marks_of(events):
            message["marks"] = [(mark.x, mark.kind) for mark in marks]
        return message

    def _is_due(self, is_news: bool, events: list[Event]) -> bool:
        now = time.monotonic()
        if any(event["event"] in _AT_ONCE for event in events):
            return True
        return now >= self._due and (is_news or (self._state == "running" and now >= self._made + _IDLE))

    def _whole(self, with_curves: bool) -> Message:
        """Return the parts of the page that changed since they were sent, and the charts over time.

        `with_curves`: also the charts over steps.
        """
        begin = time.thread_time()
        page = page_of_records(self._follower.directory, self._follower.records)
        parts = parts_of(page)
        changed = {key: html for key, html in parts.items() if self._parts.get(key) != html}
        self._parts, self._tiles, self._state = parts, page.tiles, page.verdict.state
        charts = page.charts if with_curves else [chart for chart in page.charts if chart.axis == "time"]
        if with_curves:
            self._curves = _names(page.charts)
        self._made = time.monotonic()
        self._due = self._made + max(_PACE, _SHARE * (time.thread_time() - begin))
        data = drawn_data(charts, page.strips)
        return {"parts": changed, "order": [*parts], "data": data, "state": self._state, "made": page.made}

    def _new_tiles(self, steps: list[StepRecord], events: list[Event]) -> str:
        """Return the tiles with the values of the last step. The other tiles stay as on the last whole page."""
        total = steps[-1].values.get("steps")
        new = dict(
            step_tiles(steps, evaluations_of(events), total if isinstance(total, int) else None, is_running=True)
        )
        self._tiles = [(name, new.pop(name, value)) for name, value in self._tiles if name != "steps"]
        self._parts["tiles"] = tiles_of(self._tiles)
        return self._parts["tiles"]


def _names(charts: list[Chart]) -> set[tuple[str, str]]:
    return {(chart.key, series.name) for chart in charts if chart.axis == "step" for series in chart.series}
