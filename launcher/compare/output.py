"""Render the comparison as a table, as JSON, and as CSV files."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from podrun.runtime.ranking import Ranking

from ..view.printable import in_one_line
from ..view.text_table import shorten, text_table, wrap
from .folder import TABLE
from .table import (
    TRAINING_LOSS,
    VALIDATION_LOSS,
    Measurement,
    Row,
    Step,
    VariantState,
    compare_variants,
    full_name,
    step_times,
)

_DECIMALS = 5  # maximum decimals in the table; smaller numbers get an exponent
_FEW = 5  # with fewer step times, one that dominates the total is no reason for a warning
_REASON = 60  # maximum length of a failure's reason in the table, in characters
_NAME = 40  # maximum length of a metric's name in the table, in characters
_WIDE = 100.0  # ratio of the ends of an interval that tells nothing
_HEADER = (
    ("VARIANT", "", "COMPILE", "MEDIAN", "TOTAL", "TRAIN", "VALIDATION", "SPEED-UP", "SPEED-UP", ""),
    ("", "STEPS", "s", "STEP ms", "s", "LOSS", "LOSS", "BY MEDIAN", "BY TOTAL", "STATE"),
)
_COMPILE, _TRAIN, _VALIDATION = 1, 4, 5
"""Columns that are left out if no variant has a value, counted after the variant's name."""


def as_text(rows: Sequence[Row], width: int | None = None) -> str:
    """Return the tables and their legend. If the first table exceeds `width`, names and states get lines of their own."""
    names, states = [row.measured.variant.name for row in rows], [_state(row) for row in rows]
    headers, values = _with_values(column_texts(rows))
    numbers_at = range(1, len(values) + 1)
    table = text_table([*headers, *zip(names, *values, states, strict=True)], right=numbers_at)
    notes = notes_of(rows)
    if width is not None:
        notes = [line for note in notes for line in wrap(note, width, rest="  ")]
        if max(map(len, table.splitlines())) > width:
            titles = [shorten(f"{n}: {s}", width) for n, s in zip(names, states, strict=True)]
            table = _narrow(titles, headers, values)
    return "\n".join([table, "", *_metrics(rows, width), *notes])


def _metrics(rows: Sequence[Row], width: int | None) -> list[str]:
    """Return tables of the further metrics, each as wide as `width` allows, and an empty line after each.

    If they are more than the variants, each metric has a line, otherwise each variant.
    """
    names = [row.measured.variant.name for row in rows]
    columns = [[name, *values] for name, values in metric_columns(rows)]
    if len(columns) > len(names):
        lines_of_metrics = [
            [name if width is None else shorten(name, _NAME), *values] for name, values in metric_columns(rows)
        ]
        lines = text_table([["METRIC", *names], *lines_of_metrics], right=range(1, len(names) + 1)).splitlines()
        if width is None or max(map(len, lines)) <= width:
            return [*lines, ""]
    lines = []
    while columns:
        count = len(columns) if width is None else _fitting(["VARIANT", *names], columns, width)
        shown, columns = columns[:count], columns[count:]
        table = text_table([*zip(["VARIANT", *names], *shown, strict=True)], right=range(1, len(shown) + 1))
        lines += [*table.splitlines(), ""]
    return lines


def _fitting(names: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> int:
    """Return the number of columns that fit beside the names, at least 1."""
    used = max(map(len, names))
    for count, column in enumerate(columns):
        used += 2 + max(map(len, column))
        if used > width:
            return max(1, count)
    return len(columns)


def metric_columns(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Return the name and the texts of each further metric that a variant has."""
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    return [(in_one_line(name), numbers([row.metrics.get(name) for row in rows], digits=4)) for name in names]


def _with_values(columns: list[list[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Return header lines and columns, without those that no variant has."""
    kept = columns_with_values(columns)
    headers = [[cells[0], *(cells[n + 1] for n in kept), cells[-1]] for cells in _HEADER]
    return headers, [columns[n] for n in kept]


def columns_with_values(columns: Sequence[Sequence[str]]) -> list[int]:
    """Return which columns to show: all but compile time and losses that no variant has.

    A program does not say when it compiles, and may give its losses other names.
    """
    return [n for n, cells in enumerate(columns) if n not in (_COMPILE, _TRAIN, _VALIDATION) or _has_value(cells)]


def _has_value(cells: Sequence[str]) -> bool:
    return any(cell != "-" for cell in cells)


def _narrow(titles: Sequence[str], headers: Sequence[Sequence[str]], values: Sequence[Sequence[str]]) -> str:
    header = [("", *cells[1:-1]) for cells in headers]
    rows = [*header, *(("", *row) for row in zip(*values, strict=True))]
    lines = text_table(rows, right=range(1, len(values) + 1)).splitlines()
    body = [text for both in zip(titles, lines[2:], strict=True) for text in both]
    return "\n".join([*lines[:2], *body])


def best_variant(rows: Sequence[Row], ranking: Ranking, table: str = TABLE) -> str:
    """Return a line about the variant whose value of a metric is the best; or which metrics there are instead.

    `table`: name of the file with all metrics; empty: there is none.
    """
    by_variant = values_of(ranking.metric, rows)
    if not by_variant:
        where = f" {table} has the values of all metrics." if table else ""
        return (
            f"Best by {ranking}: no variant has a finite {ranking.metric}; there are {names_of_metrics(rows)}.{where}"
        )
    name = (max if ranking.is_max else min)(by_variant, key=by_variant.__getitem__)
    of_training = (
        " of training" if ranking.metric == "loss" and all(row.validation_loss is None for row in rows) else ""
    )
    return f"Best by {ranking}{of_training}: {name}, {by_variant[name]:.5g}."


def lacks_metric(one: Measurement, ranking: Ranking) -> str | None:
    """Return a warning if a run that is done has not reported the metric that is to rank the variants; otherwise None."""
    rows = compare_variants([one])
    if one.state is not VariantState.DONE or values_of(ranking.metric, rows):
        return None
    return (
        f"{one.variant.label} has reported no finite {ranking.metric}, which --best names; it has reported "
        f"{names_of_metrics(rows)}. The table and {TABLE} will have the values of all metrics, so no run has to be repeated "
        "for another --best."
    )


def values_of(metric: str, rows: Sequence[Row]) -> dict[str, float]:
    """Return the value of a metric by variant, without variants whose last value is not finite."""
    name = full_name(metric, {name for row in rows for run in row.runs for name in run.last_values})
    every = {row.measured.variant.name: _values(row) for row in rows}
    return {variant: values[name] for variant, values in every.items() if name is not None and name in values}


def _values(row: Row) -> dict[str, float]:
    every = {VALIDATION_LOSS: row.validation_loss, TRAINING_LOSS: row.train_loss, **row.metrics}
    return {name: value for name, value in every.items() if value is not None}


def names_of_metrics(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(in_one_line(name) for row in rows for name in _values(row))) or "no metrics"


def column_texts(rows: Sequence[Row]) -> list[list[str]]:
    """Return the texts of the columns between name and state of the variants."""
    return [
        [str(row.steps) if row.steps else "-" for row in rows],
        numbers([row.compile_seconds for row in rows]),
        numbers([row.median_step and row.median_step * 1000 for row in rows]),
        numbers([row.total for row in rows]),
        _losses([row.train_loss for row in rows], [any(run.train_loss_is_nan for run in row.runs) for row in rows]),
        _losses(
            [row.validation_loss for row in rows], [any(run.validation_loss_is_nan for run in row.runs) for row in rows]
        ),
        [speed_up(row) for row in rows],
        [_ratio(row.speedup_by_total) for row in rows],
    ]


def _losses(values: Sequence[float | None], are_nan: Sequence[bool]) -> list[str]:
    return ["nan" if is_nan else text for text, is_nan in zip(numbers(values, digits=4), are_nan, strict=True)]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def speed_up(row: Row) -> str:
    """Return a speed-up with its interval: `0.95x (0.91-0.99)`, or `0.95x (unclear)` if that is very wide."""
    if row.speedup_interval is None:
        return _ratio(row.speedup)
    low, high = row.speedup_interval
    if high > _WIDE * low:
        return f"{_ratio(row.speedup)} (unclear)"
    return f"{_ratio(row.speedup)} ({low:.2f}-{high:.2f})"


def _state(row: Row) -> str:
    one = row.measured
    return shorten(f"{one.state}: {one.reason}" if one.reason else one.state, _REASON)


def numbers(values: Sequence[float | None], digits: int = 3) -> list[str]:
    """Format numbers with equally many decimals. The smallest number gets `digits` significant digits; None becomes `-`."""
    smallest = min((abs(value) for value in values if value), default=1.0)
    decimals = max(0, digits - 1 - math.floor(math.log10(smallest)))
    style = f".{decimals}f" if decimals <= _DECIMALS else f".{digits - 1}e"
    return ["-" if value is None else format(value, style) for value in values]


def notes_of(rows: Sequence[Row]) -> list[str]:
    """Return lines with the legend of the columns, and warnings."""
    first, count = rows[0].measured.variant.name, len(rows[0].runs)
    is_program = any(row.measured.is_program for row in rows)
    columns = column_texts(rows)
    compiles, train, validation = (_has_value(columns[n]) for n in (_COMPILE, _TRAIN, _VALIDATION))
    losses = ", ".join([*["training loss"] * train, *["validation loss"] * validation]).capitalize()
    interval = f" (95 % of it over the {count} runs)" if count > 1 else ""
    notes = [f"each number is the median of {count} runs"] * (count > 1)
    notes += [
        *["Compile: from the start of compiling to the end of the first step, nothing cached"] * compiles,
        "Median step, total: all steps after the first, without evaluation and checkpoints"
        if not is_program
        else "Median step, total: the time between reports after the first, with all that the program does in it",
        f"{losses}{', further metrics' if losses else 'Metrics'}: of the last step or evaluation that has them"
        if not is_program
        else f"{'Training loss, further metrics' if train else 'Metrics'} of training: the mean over the last tenth of the "
        "reports, at least 5 (a quarter, if they are fewer than 20)",
        *[f"{'Validation loss, metrics' if validation else 'Metrics'} of evaluations: of the last evaluation"]
        * is_program,
        f"Speed-up against {first}: by median is the ratio of the median steps{interval}, "
        "by total that of the totals; below 1 is slower",
    ]
    if any(speed_up(row).endswith("(unclear)") for row in rows):
        notes.append("unclear: that interval is too wide to tell anything; use a larger --repeat")
    if count == 1 and any(row.speedup for row in rows[1:]):
        notes.append(
            "each variant has run once: a speed-up may come from a machine that was busier during one of the runs; "
            "--repeat 3 gives it an interval"
        )
    if silent := [row.measured.variant.name for row in rows if row.measured.is_program and not row.steps]:
        notes.append(
            f"no metrics of {', '.join(silent)}: a program reports them with podrun.report (docs/own_programs.md)"
        )
    notes += [
        f"{row.measured.variant.name} trains {row.measured.models} models in each step: its speed-up is that of one model"
        for row in rows
        if row.measured.models > 1
    ]
    if rows[0].median_step is None:
        notes.append(f"there are no speed-ups, because {first} has no step times")
    if len({row.steps for row in rows if row.measured.state is VariantState.DONE}) > 1:
        notes.append("the variants have different numbers of steps, so their totals are not comparable")
    return notes + [note for row in rows if (note := _slow_step(row))]


def _slow_step(row: Row) -> str | None:
    """Return a warning if one step takes longer than all others, which distorts TOTAL and the plot; otherwise None."""
    times = step_times(row.measured.steps)
    if len(times) < _FEW:
        return None
    step = max(times, key=lambda step: times[step])
    if times[step] < sum(times.values()) / 2:
        return None
    return (
        f"{row.measured.variant.name}: step {step} alone took {times[step]:.3g} s, more than all others together; "
        "did it compile again?"
    )


def as_record(row: Row) -> dict[str, object]:
    """Return the row of a variant with full precision, for JSON."""
    one = row.measured
    return {
        "variant": one.variant.name,
        **dict(one.variant.values),
        "state": str(one.state),
        "reason": one.reason,
        "exit_code": one.code,
        "steps_done": row.steps,
        "runs_done": sum(run.state is VariantState.DONE for run in row.runs),
        "compile_seconds": row.compile_seconds,
        "median_step_seconds": row.median_step,
        "total_seconds": row.total,
        "train_loss": row.train_loss,
        "validation_loss": row.validation_loss,
        "models": one.models,
        "speedup_ratio_of_medians": row.speedup,
        "speedup_low": row.speedup_interval[0] if row.speedup_interval else None,
        "speedup_high": row.speedup_interval[1] if row.speedup_interval else None,
        "speedup_ratio_of_totals": row.speedup_by_total,
        "metrics": dict(row.metrics),
        "workdir": one.workdir,
        "run": one.run_id,
        "runs": [run.run_id for run in row.runs],
    }


def write_table(file: Path, rows: Sequence[Row]) -> bool:
    """Write a row per variant. Returns True, as the plot functions do."""
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    records = [_flat(row, [*names]) for row in rows]
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return True


def _flat(row: Row, names: Sequence[str]) -> dict[str, object]:
    """Return the row of a variant for CSV: a column for each metric in `names`, and the runs as one text."""
    runs = " ".join(run.run_id for run in row.runs if run.run_id)
    columns = {name: value for name, value in as_record(row).items() if name != "metrics"}
    return {**columns, "runs": runs, **{f"metrics.{name}": row.metrics.get(name) for name in names}}


def write_steps(file: Path, rows: Sequence[Row]) -> bool:
    """Write all steps and evaluations of all variants, with all metrics; missing values are empty cells. Returns True."""
    runs = [run for row in rows for run in row.runs]
    names = [*dict.fromkeys(name for run in runs for name in run.metrics if name != "grad_norm")]
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        columns = ["loss", "grad_norm", "seconds", "validation_loss", *(f"metrics.{name}" for name in names)]
        writer.writerow(["variant", "step", *columns])
        for run in runs:
            steps, losses = {step.step: step for step in run.steps}, dict(run.evaluations)
            metrics = [dict(run.metrics.get(name, ())) for name in names]
            for number in sorted({*steps, *losses, *(step for values in metrics for step in values)}):
                step, further = steps.get(number, Step(number)), [values.get(number) for values in metrics]
                values = [step.loss, step.grad_norm, step.seconds, losses.get(number), *further]
                writer.writerow([run.variant.label, number, *values])
    return True
