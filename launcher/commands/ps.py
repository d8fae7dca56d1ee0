"""`podrun ps`: list the runs of this user on this machine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from podrun.runtime.config.bucket_url import url
from podrun.runtime.contract import ExitCode
from podrun.runtime.lines import decimals, out_of

from ..pod.home import podrun_home
from ..pod.run_id import task_of, unit_of
from ..pod.traits import TRAITS
from ..rundir.run_summary import RunStatus, Summary, counted_states, summarize
from ..rundir.runs import all_runs
from ..view.text_table import shorten, text_table
from ..view.times import duration, moment
from .status import silence

_RECENT = 10  # ended runs listed without --all
_DROPPED = ("HOSTS", "SLICE", "STARTED", "JOB")
"""Columns that a narrow terminal leaves out, one after the other."""
_SHORTENED = ("JOB", "WORKDIR", "NAME", "METRIC")
"""Columns that it shortens after that."""
_LEAST, _MOST = 10, 60  # characters of a shortened column; of any column
_SHORT_ID = 6  # characters at the end of an id, for a narrow terminal


@dataclass(frozen=True)
class PsRequest:
    """Command-line options of `podrun ps`."""

    show_all: bool = False
    json: bool = False
    name: str | None = None
    tag: str | None = None
    state: str | None = None

    def wants(self, summary: Summary) -> bool:
        return (
            (self.name is None or self.name in summary.name)
            and (self.tag is None or self.tag in summary.tags)
            and (self.state is None or self.state == summary.state)
        )

    @property
    def filters(self) -> bool:
        return (self.name, self.tag, self.state) != (None, None, None)


def ps(request: PsRequest) -> int:
    """Print a row per run, newest first: running ones, and the last that ended; with a filter all that fit."""
    every = [summarize(directory) for directory in all_runs()]
    summaries = [summary for summary in every if request.wants(summary)]
    shown = summaries if request.show_all or request.filters else _of_interest(summaries)
    rows = shown if request.filters else _folded(shown)
    if request.json:
        print(json.dumps([_row(summary) for summary in shown], indent=1))
    elif not every:
        print(f"no runs in {podrun_home() / 'runs'}")
    elif not summaries:
        print(f"none of the {len(every)} runs matches; `podrun ps --all` lists all")
    else:
        print(table_of(rows, os.get_terminal_size().columns if sys.stdout.isatty() else None))
        if abandoned := [summary for summary in shown if summary.state is RunStatus.ABANDONED]:
            run, heard = ("RUN", "") if len(abandoned) > 1 else (abandoned[0].run, f", {silence(abandoned[0])}")
            print(f"abandoned: its launcher is gone{heard}")
            print(f"`podrun attach {run}` takes it over, `podrun stop {run}` ends it")
        if more := {unit_of(summary.run) for summary in summaries} - {unit_of(summary.run) for summary in shown}:
            print(f"{len(more)} more {'have' if len(more) > 1 else 'has'} ended: podrun ps --all")
    return ExitCode.DONE


def _of_interest(summaries: list[Summary]) -> list[Summary]:
    active = {unit_of(summary.run) for summary in summaries if not summary.has_ended}
    ended = dict.fromkeys(unit for summary in summaries if (unit := unit_of(summary.run)) not in active)
    recent = {*active, *list(ended)[:_RECENT]}
    return [summary for summary in summaries if unit_of(summary.run) in recent]


def _folded(summaries: Sequence[Summary]) -> list[Summary | list[Summary]]:
    """Return the runs, those of each array together."""
    units: dict[str, list[Summary]] = {}
    for summary in summaries:
        units.setdefault(unit_of(summary.run), []).append(summary)
    return [runs if task_of(runs[0].run) else runs[0] for runs in units.values()]


def _row(summary: Summary) -> dict[str, object]:
    end = summary.ended if summary.ended is not None else time.time()
    return {**asdict(summary), "seconds": round(end - summary.started, 3)}


def table_of(shown: Sequence[Summary | list[Summary]], width: int | None) -> str:
    """Return the table of the runs; `width`: columns of the terminal that it must fit, if there is one.

    `shown`: the runs; those in a list, of one array, get one row.
    """
    rows = [_array_cells(one) if isinstance(one, list) else _cells(one) for one in shown]
    columns = {name: [cells[name] for cells in rows] for name in rows[0]}
    if all(cell == "-" for cell in columns["NAME"]):
        del columns["NAME"]
    if width is not None:
        columns = _fitted(columns, width)
    table = zip(*([name, *cells] for name, cells in columns.items()), strict=True)
    return text_table([*table], right=[number for number, name in enumerate(columns) if name == "HOSTS"])


def _cells(summary: Summary) -> dict[str, str]:
    end = summary.ended if summary.ended is not None else time.time()
    return {
        "RUN": summary.run,
        "STATE": f"failed {summary.code}" if summary.state is RunStatus.FAILED else summary.state.value,
        "SLICE": summary.slice,
        "HOSTS": str(summary.hosts),
        "STEP": "-" if summary.step is None else out_of(summary.step, summary.steps),
        "METRIC": "-" if summary.value is None else f"{shorten(summary.metric or '', 16)} {decimals(summary.value)}",
        "STARTED": moment(summary.started),
        "FOR": duration(end - summary.started),
        "NAME": shorten(summary.name, _MOST) or "-",
        "WORKDIR": "-" if _has_no_workdir(summary) else _end_of(_from_here(summary.workdir), _MOST),
        "JOB": shorten(summary.job, 200) if summary.program else "train.yaml",
    }


def _array_cells(runs: Sequence[Summary]) -> dict[str, str]:
    """Return the cells of an array, of which `runs` are the runs."""
    first = _cells(runs[-1])
    begun, ended = min(run.started for run in runs), max(run.ended or time.time() for run in runs)
    return {
        **first,
        "RUN": unit_of(runs[-1].run),
        "STATE": counted_states(runs),
        "STEP": "-",
        "METRIC": "-",
        "STARTED": moment(begun),
        "FOR": duration(ended - begun),
        "NAME": f"array of {len(runs)}",
        "WORKDIR": _end_of(_from_here(str(Path(runs[-1].workdir).parent)), _MOST),
    }


def _has_no_workdir(summary: Summary) -> bool:
    """Return whether the run is of a program that never made its workdir, because it does not use podrun's."""
    is_here = summary.transport in TRAITS and TRAITS[summary.transport].files_are_here
    workdir = Path(summary.workdir)
    return summary.program and is_here and not url(workdir) and not workdir.is_dir()


def _from_here(workdir: str) -> str:
    """Return a workdir as it would be typed here."""
    path = Path(workdir)
    with suppress(OSError, RuntimeError):  # this folder was removed, or the user has no home
        if path.is_relative_to(here := Path.cwd()):
            return str(path.relative_to(here))
        if path.is_relative_to(home := Path.home()):
            return f"~/{path.relative_to(home)}"
    return url(path) or workdir


def _fitted(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """Return the columns that fit into `width`, with the texts in them shortened."""
    kept = dict(columns)
    for dropped in _DROPPED:
        if _width(kept, _SHORTENED) <= width:
            break
        kept.pop(dropped)
    ids = [run[-_SHORT_ID:] for run in kept["RUN"]]
    if _width(kept, _SHORTENED) > width and len({*ids}) == len(ids):
        kept["RUN"] = ids
    for name in _SHORTENED:
        if name in kept and (over := _width(kept) - width) > 0:
            room = max(_LEAST, max(map(len, kept[name])) - over)
            shortened = {"WORKDIR": _end_of, "METRIC": _with_value}.get(name, shorten)
            kept[name] = [shortened(cell, room) for cell in kept[name]]
    return kept


def _width(columns: dict[str, list[str]], shortened: Sequence[str] = ()) -> int:
    """Return the width of a table, if the columns in `shortened` are as narrow as they can be."""
    widths = (
        max(len(name), min(_LEAST, most) if name in shortened else most)
        for name, cells in columns.items()
        for most in [max(map(len, cells))]
    )
    return sum(widths) + 2 * (len(columns) - 1)


def _with_value(metric: str, width: int) -> str:
    """Return a metric such as `val/accuracy 0.9310` with a shorter name; its value stays whole."""
    name, _, value = metric.rpartition(" ")
    return f"{name[: max(1, width - len(value) - 1)]} {value}" if len(metric) > width else metric


def _end_of(text: str, limit: int) -> str:
    """Return the end of a path, whose beginning many runs share."""
    return text if len(text) <= limit else f"..{text[2 - limit :]}"
