"""`podrun ps`: list the runs of this user on this machine."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from podrun.runtime.contract import ExitCode
from podrun.runtime.lines import decimals, out_of

from ..pod.home import podrun_home
from ..rundir.run_summary import RunStatus, Summary, summarize
from ..rundir.runs import RunDirectory, all_runs, name_of
from ..view.text_table import shorten, text_table
from ..view.times import duration, moment

_RECENT = 10  # ended runs listed without --all


def ps(show_all: bool, as_json: bool) -> int:
    """Print a row per run, newest first: running ones, and the last that ended."""
    summaries = [summarize(directory) for directory in all_runs()]
    shown = summaries if show_all else _of_interest(summaries)
    if as_json:
        print(json.dumps([_row(summary) for summary in shown], indent=1))
    elif not summaries:
        print(f"no runs in {podrun_home() / 'runs'}")
    else:
        print(_table(shown))
        if abandoned := [summary.run for summary in shown if summary.state is RunStatus.ABANDONED]:
            run = abandoned[0] if len(abandoned) == 1 else "RUN"
            print(f"abandoned: its launcher is gone; `podrun attach {run}` takes it over, `podrun stop {run}` ends it")
        if len(shown) < len(summaries):
            print(f"{len(summaries) - len(shown)} more have ended: podrun ps --all")
    return ExitCode.DONE


def _of_interest(summaries: list[Summary]) -> list[Summary]:
    ended = [summary for summary in summaries if summary.has_ended]
    recent = {summary.run for summary in ended[:_RECENT]}
    return [summary for summary in summaries if not summary.has_ended or summary.run in recent]


def _row(summary: Summary) -> dict[str, object]:
    end = summary.ended if summary.ended is not None else time.time()
    return {**asdict(summary), "seconds": round(end - summary.started, 3)}


def _table(shown: list[Summary]) -> str:
    rows = [["RUN", "STATE", "SLICE", "HOSTS", "STEP", "METRIC", "STARTED", "FOR", "JOB"]]
    for summary in shown:
        end = summary.ended if summary.ended is not None else time.time()
        rows.append(
            [
                summary.run,
                f"failed {summary.code}" if summary.state is RunStatus.FAILED else summary.state.value,
                summary.slice,
                str(summary.hosts),
                "-" if summary.step is None else out_of(summary.step, summary.steps),
                "-" if summary.value is None else f"{shorten(summary.metric or '', 16)} {decimals(summary.value)}",
                moment(summary.started),
                duration(end - summary.started),
                shorten(_job(summary), _job_width()),
            ]
        )
    return text_table(rows, right=(3,))


def _job(summary: Summary) -> str:
    """Return what runs: `NAME: python train.py`, with the name that the user has given."""
    job = summary.job if summary.program else os.path.basename(summary.job)
    name = name_of(RunDirectory(Path(summary.directory)))
    return f"{name}: {job}" if name else job


def _job_width() -> int:
    """Return the width of the job column: the rest of the terminal's line; unlimited in a file."""
    if not sys.stdout.isatty():
        return 200
    return max(20, os.get_terminal_size().columns - 98)
