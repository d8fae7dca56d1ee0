"""Build the page of a run from its run directory, or of a workdir from its metrics and the runs that used it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from podrun.runtime.contract import UserError, Workdir
from podrun.runtime.events import EvalEvent, EventKind, ResumeEvent, metrics_of
from podrun.runtime.lines import out_of

from ..plan.spec import RunSpec
from ..pod.masking import Mask
from ..pod.secret_values import secrets_at_hand
from ..rundir.events import Event, Row
from ..rundir.log_files import log_files
from ..rundir.logs import tail
from ..rundir.run_summary import RunStatus, Summary, status_of, summarize
from ..rundir.runs import RunDirectory, all_runs
from ..rundir.work_tree import read_work_tree
from ..view.times import date_and_time, duration
from .curves import curves, usage_charts
from .expected import expected_of
from .model import Log, Mark, Page, Share, Table, Verdict
from .records import Records, StepRecord, finite, read_metrics, read_records
from .samples import last_samples
from .step_times import lags_of, lateness_of, named_late, step_times_of
from .timeline import lanes_of, samples_text, shares_of, strips_of
from .verdict import straggler, verdict_of
from .what_was_run import tables_of

_MOST_LOGS, _LINES = 16, 30  # processes whose last lines are shown, and lines of each
_MOST_ROWS = 32  # rows of the table of step times
_MOST_MARKS = 400
_MOST_NAMED = 4  # metrics of evaluations, such as `val/f1`, that have tiles


def page_of_run(directory: RunDirectory) -> Page:
    """Return the page of a run, which may still be running."""
    return page_of_records(directory, read_records(directory))


def page_of_records(directory: RunDirectory, records: Records) -> Page:
    """Return the page of a run whose records are already read."""
    return _page(directory, records, records.steps, evaluations_of(records.events))


def begin_of(records: Records) -> float | None:
    """Return the time of a run's first event; None if there is none."""
    return records.events[0]["time"] if records.events else None


def evaluations_of(events: list[Event]) -> list[EvalEvent]:
    return [event for event in events if event["event"] == EventKind.EVAL]


def page_of_workdir(workdir: Path) -> Page:
    """Return the page of a workdir: all steps of its metrics with the marks of all runs that made them, and the last run.

    Raises UserError.
    """
    file = Workdir(workdir).metrics
    try:
        steps, evaluations = read_metrics(file)
    except OSError as error:
        raise UserError(
            f"{workdir} has no metrics that can be read ({file.name}: {error.strerror}); give a workdir, or the id of a run"
        ) from None
    if runs := _runs_of(workdir):
        directory, records = runs[-1]
        marks = marks_of([event for _, earlier in runs for event in earlier.events])
        return _page(directory, records, steps, evaluations, marks, len(runs))
    verdict = Verdict("none", "Metrics of a workdir", "There is no record here of a run that used it.", [], [])
    tiles = step_tiles(steps, evaluations)
    charts, tables = curves(steps, evaluations, []), [Table("What was run", [("workdir", str(workdir))])]
    return Page(
        workdir.name,
        str(workdir),
        verdict,
        tiles,
        charts,
        [],
        [],
        [],
        "",
        tables,
        [],
        "",
        [],
        date_and_time(time.time()),
    )


def _runs_of(workdir: Path) -> list[tuple[RunDirectory, Records]]:
    """Return the runs that made what is in a workdir, the oldest first, with their records."""
    runs = []
    for directory in all_runs():
        start = directory.start()
        if start is None or os.path.realpath(start["workdir"]) != os.path.realpath(workdir):
            continue
        records = read_records(directory)
        runs.append((directory, records))
        if records.steps and _resume_of(records.events) is None:
            break  # it began anew, so nothing of earlier runs is left
    return runs[::-1]


def _page(
    directory: RunDirectory,
    records: Records,
    steps: list[StepRecord],
    evaluations: Sequence[Row],
    marks: list[Mark] | None = None,
    runs: int = 1,
) -> Page:
    """Return the page of a run. `steps`, `evaluations` and `marks` may come from all `runs` of its workdir.

    Without `marks` the charts show the marks of this run.
    """
    summary, (status, end, _) = summarize(directory), status_of(directory)
    spec, events = _spec(directory), records.events
    begin = events[0]["time"] if events else summary.started
    until = _end(summary, events, begin)
    lanes = lanes_of(events, records.by_process, until)
    lags = lags_of(records.by_process, begin, until)
    shares = shares_of(lanes, is_program=records.is_program, is_sampling=samples_text(events)) if lanes else []
    goodput = _goodput(shares)
    expected = None if goodput is None else expected_of(summary.run, records, shares, goodput)
    step_times = step_times_of(records, lags, named_late(events, until))
    # Several runs may have made the steps of a workdir.
    since, marks = (begin, marks_of(records.events)) if marks is None else (None, marks)
    charts = curves(steps, evaluations, marks, records.is_program, since)
    charts += usage_charts([event for event in events if event["event"] == EventKind.USAGE], begin)
    verdict = verdict_of(status, end, events, begin, had_nothing_left=_had_nothing_left(summary, events))
    late = lateness_of(records.by_process, lags, until - begin)
    strips = [*([strips_of(lanes, begin, until)] if lanes else []), *([late] if late else [])]
    label = spec.label if spec else None
    mask = Mask(secrets_at_hand(spec.pod) if spec else ())
    failed = {end["host"], f"{end['host']}.{end.get('process')}"} if end is not None and end["code"] else set()
    logs = sorted(log_files(directory), key=lambda file: (file.name not in failed, file.host not in failed))
    return Page(
        title=(label.name if label else "") or Path(_script(summary.job) if summary.program else summary.job).name,
        subtitle=f"run {summary.run} on {summary.slice}, started {date_and_time(summary.started)}"
        + _scope(events, Path(summary.workdir), runs),
        verdict=verdict,
        tiles=[
            ("running for" if status is RunStatus.RUNNING else "lasted", duration(until - begin)),
            *([] if goodput is None else [("goodput", f"{goodput:.1f} %")]),
            *([("goodput expected", f"{expected.percent:.1f} %")] if expected and expected.percent is not None else []),
            *(
                step_tiles(steps, evaluations, summary.steps, status is RunStatus.RUNNING)
                if steps
                else _of_others(records)
            ),
            *([("slowest", text)] if (text := straggler(step_times)) else []),
        ],
        charts=charts,
        shares=shares,
        strips=strips,
        step_times=sorted(step_times, key=lambda row: (-row.late, -(row.behind or 0.0)))[:_MOST_ROWS],
        step_times_note=_left_out(_MOST_ROWS, len(step_times), "those that the others wait for most"),
        tables=[*tables_of(directory.run_id, spec, read_work_tree(directory.work_tree), events), *_profiles(directory)],
        logs=[Log(file.name, mask.lines(tail(file.path, _LINES)), file.name in failed) for file in logs[:_MOST_LOGS]],
        logs_note=_left_out(_MOST_LOGS, len(logs), f"`podrun logs {summary.run}` has all"),
        samples=last_samples(events),
        made=date_and_time(time.time()),
        expected=expected.note if expected else "",
    )


def _scope(events: list[Event], workdir: Path, runs: int) -> str:
    """Return which runs of the workdir the page has; empty if there is only one."""
    if runs > 1:
        return f". The curves are those of all {runs} runs of the workdir, all else is of this run"
    first = _resume_of(events)
    if first is None:
        return ""
    whole = f": podrun report {workdir} has the steps before as well" if Workdir(workdir).metrics.is_file() else ""
    return f". It went on from step {first['step']}{whole}"


def _resume_of(events: list[Event]) -> ResumeEvent | None:
    """Return the event with which a run went on from an earlier run's checkpoint; None if it began anew."""
    for event in events:
        if event["event"] == EventKind.RESUME:
            return None if "memory" in event else event  # that in memory is the run's own
        if event["event"] == EventKind.CHECKPOINT:
            return None
    return None


def _of_others(records: Records) -> list[tuple[str, str]]:
    """Return the tile with the last step that any process has reported, for a run whose leading process has reported none."""
    reported = [some[-1]["step"] for some in records.by_process.values() if some]
    return [("step", str(max(reported)))] if reported else step_tiles([], [])


def _had_nothing_left(summary: Summary, events: list[Event]) -> bool:
    """Return True if all steps were done by earlier runs in the same workdir."""
    restarted = any(event["event"] == EventKind.RESTART for event in events)
    resumed = [event["step"] for event in events if event["event"] == EventKind.RESUME]
    return not restarted and summary.step is not None and resumed == [summary.step] == [summary.steps]


def _script(command: str) -> str:
    """Return the script of a program's command, or its first word."""
    words = command.split(" ")
    return next((word for word in words if word.endswith(".py")), words[0])


def _profiles(directory: RunDirectory) -> list[Table]:
    """Return a table of the downloaded traces, or no table. It has only paths, because a page cannot open local files."""
    rows = [
        (path.parts[-5], str(path)) for path in sorted(directory.profiles.glob("*/plugins/profile/*/*.trace.json.gz"))
    ]
    return [Table("Profiles, for https://ui.perfetto.dev", rows)] if rows else []


def _left_out(most: int, count: int, others: str) -> str:
    """Return a note about a list that was shortened to `most` of `count` items; empty if it is complete."""
    return f"{most} of {count} processes: {others}." if count > most else ""


def _spec(directory: RunDirectory) -> RunSpec | None:
    try:
        return directory.spec()
    except UserError:  # written by another version; the records are readable
        return None


def _end(summary: Summary, events: list[Event], begin: float) -> float:
    """Return the time at which the time axis of the page ends."""
    if summary.state is RunStatus.RUNNING:
        return time.time()
    return max(begin, summary.ended or 0.0, max((event["time"] for event in events), default=begin))


def _goodput(shares: list[Share]) -> float | None:
    """Return the percentage of the run's time that was spent on training whose results were kept.

    None if a program did not report what it did.
    """
    if any(share.kind == "unknown" for share in shares):
        return None
    return 100 * sum(share.share for share in shares if share.kind == "train")


def step_tiles(
    steps: Sequence[StepRecord], evaluations: Sequence[Row], total: int | None = None, is_running: bool = False
) -> list[tuple[str, str]]:
    """Return (name, value) pairs of the last step and evaluation.

    Args:
        steps: steps of the run.
        evaluations: its evaluations.
        total: the number of steps of the run.
        is_running: add the estimated time left.
    """
    if not steps:
        return [("steps", "none reported")]
    last = steps[-1].values
    tiles = [("step", out_of(last["step"], total))]
    if is_running and (left := finite(last.get("seconds_left"))) is not None:
        tiles.append(("time left", duration(left)))
    tiles += last_metrics(steps, evaluations)
    for unit in ("tokens", "examples"):
        if (rate := finite(last.get(f"{unit}_per_second"))) is not None:
            tiles.append((f"{unit}/s", f"{rate:,.0f}"))
            break
    if (mfu := finite(last.get("mfu"))) is not None:
        tiles.append(("MFU", f"{100 * mfu:.1f} %"))
    if (seen := finite(last.get("tokens_seen"))) is not None:
        tiles.append(("tokens seen", f"{seen:,.0f}"))
    return tiles


def last_metrics(steps: Sequence[StepRecord], evaluations: Sequence[Row]) -> list[tuple[str, str]]:
    """Return (name, value) pairs of the last losses and of metrics like `val/f1`. A value may be `nan`.

    The accuracy is that of a classification; a language model is judged by its loss.
    """
    trained = metrics_of(steps[-1].values) if steps else {}
    evaluated = {name: value for row in evaluations for name, value in metrics_of(row).items()}
    named = [name for name in evaluated if "/" in name][:_MOST_NAMED]
    accuracy = None if "perplexity" in evaluated else evaluated.get("accuracy")
    values = [("loss", trained.get("loss")), ("validation loss", evaluated.get("loss"))]
    values += [("validation accuracy", accuracy), *((name, evaluated[name]) for name in named)]
    return [(name, f"{value:#.4g}") for name, value in values if value is not None]


def marks_of(events: list[Event]) -> list[Mark]:
    """Return marks at restarts, saves and evaluations; only some of them if there are very many."""
    marks = []
    for event in events:
        if event["event"] == EventKind.RESUME:
            marks.append(Mark(event["step"], "restart"))
        elif event["event"] == EventKind.CHECKPOINT:
            marks.append(Mark(event["step"], "save"))
        elif event["event"] == EventKind.EVAL:
            marks.append(Mark(event["step"], "evaluate"))
    kept: list[Mark] = []
    for kind in ("evaluate", "save", "restart"):
        of_kind = [mark for mark in marks if mark.kind == kind]
        kept += of_kind[:: max(1, math.ceil(len(of_kind) / _MOST_MARKS))]
    return kept
