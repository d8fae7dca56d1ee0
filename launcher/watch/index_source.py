"""The page of the latest runs: state, last step, and a metric with its curve."""

from __future__ import annotations

import os
import time

from ..report.encode import drawn_data
from ..report.records import finite
from ..report.verdict import cause_of
from ..report.write_html import document, section, text_of
from ..rundir.run_summary import RunStatus, Summary, status_of, summarize
from ..rundir.runs import RunDirectory, all_runs
from ..rundir.submitted import job_of
from ..view.times import date_and_time, duration, moment
from .feed import Message
from .live import live_index
from .overlay_source import MAX_RUNS
from .samples import sample_metric

_MAX_RUNS, _PACE = 100, 2.0  # runs listed, and seconds between two polls
_WIDTH, _HEIGHT = 120, 28


class IndexSource:
    """Page of all runs. A run is read again only if its records or its state have changed."""

    name = "all runs"

    def __init__(self) -> None:
        self._rows: dict[str, tuple[tuple[object, ...], str]] = {}
        self._shown = ""
        self._due = 0.0

    def poll(self) -> Message:
        if time.monotonic() < self._due:
            return {}
        begin = time.thread_time()
        shown = self._html()
        self._due = time.monotonic() + max(_PACE, 50 * (time.thread_time() - begin))
        if shown == self._shown:
            return {}
        self._shown = shown
        return {"parts": {"runs": shown}, "order": ["runs"], "made": date_and_time(time.time())}

    def html(self, number: int) -> str:
        subtitle = "The latest runs of this user on this machine"
        return document(
            "Runs", subtitle, {"runs": self._shown}, drawn_data([], []), date_and_time(time.time()), live_index(number)
        )

    def _html(self) -> str:
        runs = all_runs()[:_MAX_RUNS]
        rows = "".join(map(self._row, runs))
        if not rows:
            return section("Runs", "<p>There are no runs.</p>")
        self._rows = {run.run_id: self._rows[run.run_id] for run in runs}
        names = ("Name", "State", "Step", "Metric", "Curve", "Slice", "Started", "Lasted", "Run")
        head = "".join(
            f'<th><button type="button" data-column="{n}">{name}</button></th>' for n, name in enumerate(names, 1)
        )
        return (
            '<section><div class="controls"><label>Search <input id="search" type="search" placeholder="name, tag, state">'
            f'</label><button type="submit" form="chosen" data-most="{MAX_RUNS}">Compare the chosen runs</button>'
            '<span class="quiet" id="count"></span></div><form id="chosen" action="overlay"><div class="wide">'
            f'<table class="runs"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div></form></section>'
        )

    def _row(self, run: RunDirectory) -> str:
        mark = (_stamp(run), run.supervisor(), job_of(run))
        known = self._rows.get(run.run_id)
        if known is None or known[0] != mark:
            self._rows[run.run_id] = known = (mark, _row(run, summarize(run)))
        return known[1]


def _stamp(run: RunDirectory) -> tuple[int, int]:
    try:
        status = os.stat(run.events)
    except OSError:
        return (0, 0)
    return (status.st_size, status.st_mtime_ns)


def _row(run: RunDirectory, summary: Summary) -> str:
    metric = summary.metric or "loss"
    values = sample_metric(run.events, metric)
    name = text_of(run.run_id)
    step = "" if summary.step is None else f"{summary.step}/{summary.steps}" if summary.steps else str(summary.step)
    value = "" if summary.value is None else text_of(f"{metric} {summary.value:#.4g}")
    order = "" if (number := finite(summary.value)) is None else number  # runs without a number come last
    lasted = (summary.ended or time.time()) - summary.started
    tags = "".join(f' <span class="tag">{text_of(tag)}</span>' for tag in summary.tags)
    link = f'<a href="run/{name}">{text_of(summary.name or summary.job)}</a>'
    cells = "".join(
        "<td>" + cell + "</td>" if order is None else f'<td data-order="{order}">{cell}</td>'
        for order, cell in (
            (None, f'<input type="checkbox" name="run" value="{name}" aria-label="{name}">'),
            (None, link + tags + _cause(run, summary)),
            (None, f'<span class="state {summary.state}">{summary.state}</span>'),
            (summary.step or 0, step),
            (order, value),
            (order, _sparkline(metric, values)),
            (None, text_of(summary.slice)),
            (summary.started, text_of(moment(summary.started))),
            (lasted, text_of(duration(lasted))),
            (None, f'<span class="quiet" title="{name}">{name.rpartition("-")[2]}</span>'),
        )
    )
    return f'<tr id="run-{name}">{cells}</tr>'


def _cause(run: RunDirectory, summary: Summary) -> str:
    """Return the line that says why a run has failed; empty if it has not."""
    if summary.state is not RunStatus.FAILED or (end := status_of(run)[1]) is None:
        return ""
    text = text_of(cause_of(end["message"]))
    return f'<span class="cause" title="{text}">{text}</span>'


def _sparkline(metric: str, values: list[float]) -> str:
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    points = " ".join(
        f"{number * _WIDTH / (len(values) - 1):.1f},{_HEIGHT - 2 - (value - low) / ((high - low) or 1) * (_HEIGHT - 4):.1f}"
        for number, value in enumerate(values)
    )
    label = text_of(f"{metric} from {values[0]:.4g} to {values[-1]:.4g}")
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}"><polyline points="{points}"/></svg>'
