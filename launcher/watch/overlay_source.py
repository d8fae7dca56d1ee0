"""The page that overlays the metrics of chosen runs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from podrun.runtime.lines import out_of

from ..report.curves import curves
from ..report.encode import drawn_data
from ..report.make_page import begin_of, evaluations_of, last_metrics
from ..report.model import Chart, Series
from ..report.records import StepRecord
from ..report.write_html import document, figures, section, text_of
from ..rundir.run_summary import summarize
from ..rundir.runs import RunDirectory, label_of
from ..view.times import date_and_time
from .feed import Message
from .follower import Follower
from .live import live_overlay

MAX_RUNS = 8
"""Maximum number of runs: the number of colours."""
_PACE, _SHARE = 2.0, 50
_POINTS = 1500  # points per run; each shows the lowest and highest loss of the steps it represents
_MOST_KEYS = 60
_LEFT_OUT = ("learning_rate", "mfu")


class OverlaySource:
    """The page that overlays the metrics of several runs."""

    def __init__(self, followers: Sequence[Follower]) -> None:
        self.runs = [follower.directory.run_id for follower in followers]
        self.name = " ".join(self.runs)
        self._followers = followers
        self._known: list[tuple[int, int, int]] = []
        self._parts: dict[str, str] = {}
        self._data = drawn_data([], [])
        self._due = -math.inf

    def poll(self) -> Message:
        if time.monotonic() < self._due:
            return {}
        begin = time.thread_time()
        with ExitStack() as locks:
            for follower in self._followers:
                locks.enter_context(follower.lock)
                follower.advance()
            known = [(f.generation, len(f.records.steps), len(f.records.events)) for f in self._followers]
            if known != self._known:
                charts, table = self._charts(), self._table()
        is_new, self._known = known != self._known, known
        if is_new:
            self._parts = {
                "runs": table,
                "differs": _differs([follower.directory for follower in self._followers]),
                "metrics": figures("Metrics", charts, controls=True),
            }
            self._data = drawn_data(charts, [])
        self._due = time.monotonic() + max(_PACE, _SHARE * (time.thread_time() - begin))
        if not is_new:
            return {}
        return {"parts": self._parts, "order": [*self._parts], "data": self._data, "made": date_and_time(time.time())}

    def html(self, number: int) -> str:
        live = live_overlay(self.runs, number)
        subtitle = "Training as lines, validation as dots"
        return document("Runs over each other", subtitle, self._parts, self._data, date_and_time(time.time()), live)

    def _charts(self) -> list[Chart]:
        """Return the charts that at least one run has."""
        merged: dict[str, Chart] = {}
        for number, follower in enumerate(self._followers):
            records = follower.records
            evaluations = evaluations_of(records.events)
            for chart in curves(thinned(records.steps), evaluations, [], records.is_program, begin_of(records)):
                if chart.key not in _LEFT_OUT:
                    known = merged.setdefault(chart.key, replace(chart, series=[]))
                    known.series.extend(_of_run(chart, _name(follower.directory), number))
        return [*merged.values()]

    def _table(self) -> str:
        """Return a table of the runs with their last values; the swatches are the colours of their curves."""
        summaries = [summarize(follower.directory) for follower in self._followers]
        last = [
            dict(last_metrics(follower.records.steps, evaluations_of(follower.records.events)))
            for follower in self._followers
        ]
        columns = dict.fromkeys(name for values in last for name in values)
        head = "".join(f'<th class="number">{text_of(name)}</th>' for name in ("Step", *map(_title, columns)))
        rows = ""
        for number, (summary, values) in enumerate(zip(summaries, last, strict=True)):
            run = text_of(summary.run)
            link = f'{_swatch(number)}<a href="run/{run}">{text_of(_name(self._followers[number].directory))}</a>'
            state = f'<span class="state {summary.state}">{summary.state}</span>'
            step = "-" if summary.step is None else out_of(summary.step, summary.steps)
            rows += f'<tr><td>{link}</td><td>{state}</td><td class="number">{step}</td>'
            rows += "".join(f'<td class="number">{text_of(values.get(name, "-"))}</td>' for name in columns)
            rows += f'<td class="job">{text_of(summary.job)}</td><td class="quiet">{run}</td></tr>'
        head = f"<thead><tr><th>Name</th><th>State</th>{head}<th>Job</th><th>Run</th></tr></thead>"
        return section("Runs", f'<div class="wide"><table>{head}<tbody>{rows}</tbody></table></div>')


def _title(name: str) -> str:
    """Return the head of a column: a metric that a program has named is as it was named."""
    return name if "/" in name else name.capitalize()


def _swatch(number: int) -> str:
    return f'<i class="swatch" data-colour="c{number}"></i>'


def _name(directory: RunDirectory) -> str:
    """Return the user's name for a run, or the end of its id."""
    return label_of(directory).name or directory.run_id[-4:]


def _differs(runs: Sequence[RunDirectory]) -> str:
    """Return a table of the keys in which the jobs differ."""
    jobs = [run.settings() for run in runs]
    keys = [key for key in dict.fromkeys(key for job in jobs for key in job) if len({job.get(key) for job in jobs}) > 1]
    if not keys:
        return ""
    head = "".join(f"<th>{_swatch(number)}{text_of(_name(run))}</th>" for number, run in enumerate(runs))
    rows = ""
    for key in keys[:_MOST_KEYS]:
        values = "".join(f"<td><code>{text_of(job.get(key, '-'))}</code></td>" for job in jobs)
        rows += f"<tr><td>{text_of(key)}</td>{values}</tr>"
    return section(
        "What differs",
        f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>',
    )


def _of_run(chart: Chart, name: str, colour: int) -> Iterator[Series]:
    """Yield the first curve of a run's chart, and its evaluations, in the colour of the run."""
    for number, series in enumerate(chart.series):
        if number == 0 or series.style == "dots":
            yield replace(series, name=name if number == 0 else f"{name}, {series.name}", colour=colour)


def thinned(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """Return a limited number of records, each with the range of the loss over the records that it replaces."""
    stride = math.ceil(len(steps) / _POINTS) or 1
    groups = (steps[at : at + stride] for at in range(0, len(steps), stride))
    return [
        StepRecord(group[-1].values, min(s.lowest for s in group), max(s.highest for s in group)) for group in groups
    ]
