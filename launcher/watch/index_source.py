"""The page of the latest runs: state, last step, and a metric with its curve."""

from __future__ import annotations

import os
import time

from podrun.runtime.contract import UserError

from ..report.encode import drawn_data
from ..report.write_html import document, section, text_of
from ..rundir.run_summary import Summary, summarize
from ..rundir.runs import RunDirectory, all_runs
from ..rundir.submitted import job_of
from ..view.times import moment
from .feed import Message
from .live import live_index
from .samples import sample_metric

_MAX_RUNS, _PACE = 30, 2.0  # runs listed, and seconds between two polls
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
        return {"parts": {"runs": shown}, "order": ["runs"], "made": moment(time.time())}

    def html(self, number: int) -> str:
        subtitle = "The latest runs of this user on this machine"
        return document(
            "Runs", subtitle, {"runs": self._shown}, drawn_data([], []), moment(time.time()), live_index(number)
        )

    def _html(self) -> str:
        runs = all_runs()[:_MAX_RUNS]
        rows = "".join(map(self._row, runs))
        if not rows:
            return section("Runs", "<p>There are no runs.</p>")
        self._rows = {run.run_id: self._rows[run.run_id] for run in runs}
        names = ("", "Run", "Name", "State", "Step", "Last", "So far", "Started")
        head = "".join(f"<th>{name}</th>" for name in names)
        return section(
            "Runs",
            f'<form action="overlay"><div class="wide"><table class="runs"><thead><tr>{head}</tr></thead>'
            f'<tbody>{rows}</tbody></table></div><button type="submit">Overlay the chosen runs</button></form>',
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
    code = f" {summary.code}" if summary.code else ""
    cells = "".join(
        f"<td>{cell}</td>"
        for cell in (
            f'<input type="checkbox" name="run" value="{name}" aria-label="{name}">',
            f'<a href="run/{name}">{name}</a>',
            text_of(_name(run, summary)),
            text_of(f"{summary.state}{code}"),
            step,
            text_of(f"{metric} {values[-1]:.4g}") if values else "",
            _sparkline(metric, values),
            text_of(moment(summary.started)),
        )
    )
    return f'<tr id="run-{name}">{cells}</tr>'


def _name(run: RunDirectory, summary: Summary) -> str:
    try:
        label = run.spec().label
    except UserError:  # written by another version
        return summary.job
    return (label.name if label else "") or summary.job


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
