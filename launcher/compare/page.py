"""Build the page of a comparison: overlaid curves, spread of step times, results, and differing keys. PURE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..report.curves import key_of
from ..report.encode import drawn_data
from ..report.model import Chart, Series
from ..report.write_html import document, figures, section, text_of, tiles_of
from .output import column_texts, columns_with_values, metric_columns, notes_of, speed_up
from .spread import Spread, box_svg, spread_of, ticks_to
from .table import Measurement, Row, VariantState, step_times

_COLOURS = 8
"""Number of colours in the page's style; further variants start again with the first."""
_MOST = 40_000  # points of all curves of a chart together
_EQUAL = 1e-4
"""Relative difference of losses below which they count as equal."""
_UNKNOWN = (0.0, math.inf)
"""Interval of a speed-up of which a single round was measured."""
_COLUMNS = (
    *("Steps", "Compile, s", "Median step, ms", "Total, s", "Training loss", "Validation loss"),
    *("Speed-up by median", "Speed-up by total"),
)
"""Heads of the columns between variant and state, in the order of `column_texts`."""
_ORDER = (4, 5, 0, 1, 2, 3, 6, 7)
"""The order in which the page has them: losses first, because a phone shows only the first columns at once."""


@dataclass(frozen=True)
class About:
    """What was compared, on which slice, and the folder with the results."""

    name: str
    slice: str
    workdir: str
    command: str
    made: str
    best: str | None = None
    """Line about the variant that is best by the order that was asked for."""


def page_of(rows: Sequence[Row], about: About) -> str:
    """Return the page of a comparison: one self-contained HTML file."""
    charts = charts_of(rows)
    parts = {
        "verdict": _verdict(rows, about.best),
        "tiles": tiles_of(_tiles(rows)),
        "metrics": figures("Metrics", charts, controls=True),
        "results": section(
            "Results",
            _results(rows),
            _further(rows),
            *(f'<p class="quiet">{text_of(note)}</p>' for note in notes_of(rows)),
        ),
        "times": _times(rows),
        "differs": section("What differs", _differs(rows)),
        "compared": section("What was compared", _compared(rows, about)),
    }
    return document(
        f"{about.name}: {len(rows)} variants",
        f"podrun compare on {about.slice}",
        {key: html for key, html in parts.items() if html},
        drawn_data(charts, []),
        about.made,
    )


# --- texts ----------------------------------------------------------------------------------------------------------


def _verdict(rows: Sequence[Row], best: str | None) -> str:
    runs = [run for row in rows for run in row.runs]
    failed = [run for run in runs if run.state is not VariantState.DONE]
    done = sum(row.measured.state is VariantState.DONE for row in rows)
    title = f"{done} of {len(rows)} variants are done" if failed else f"All {len(rows)} variants are done"
    lines = [
        *([best] if best else _best_loss(rows)),
        *_fastest(rows),
        *(f"{one.variant.label}: {one.state}{f', {one.reason}' if one.reason else ''}" for one in failed),
    ]
    state = "failed" if any(one.state is VariantState.FAILED for one in failed) else "interrupted" if failed else "done"
    text = "\n".join(map(text_of, lines))
    return f'<section id="verdict" class="verdict {state}"><h2>{title}</h2><p class="cause">{text}</p></section>'


def _best_loss(rows: Sequence[Row]) -> list[str]:
    """Return a line about the variant with the lowest validation loss, if at least two have one."""
    losses = {row.measured.variant.name: loss for row in rows if (loss := row.validation_loss) is not None}
    if len(losses) < 2:
        return []
    best = min(losses, key=losses.__getitem__)
    if max(losses.values()) - losses[best] <= _EQUAL * abs(losses[best]):
        return [f"The validation losses are equal, to 4 digits: {losses[best]:.4g}."]
    return [f"The lowest validation loss: {best}, {losses[best]:.5g}."]


def _fastest(rows: Sequence[Row]) -> list[str]:
    """Return a line about the variant with the fastest steps, or a line that none is clearly the fastest.

    Variants that have run once have no line: their times also differ if the machine was busier during one of the runs.
    """
    timed = sorted((row for row in rows if row.speedup is not None), key=lambda row: row.speedup or 0.0)
    if len(timed) < 2 or len(rows[0].runs) == 1:
        return []
    second, fastest = timed[-2:]
    name, first = fastest.measured.variant.name, rows[0].measured.variant.name
    intervals = {row.measured.variant.name: row.speedup_interval or _UNKNOWN for row in timed} | {first: (1.0, 1.0)}
    low, _ = intervals.pop(name)
    if any(high >= low for _, high in intervals.values()):
        return ["The steps of no variant are clearly the fastest."]
    if fastest is not rows[0]:
        return [f"The fastest steps: {name}, {speed_up(fastest)} as fast as {first}."]
    return [f"The fastest steps: {name}; {second.measured.variant.name} is {speed_up(second)} as fast."]


def _tiles(rows: Sequence[Row]) -> list[tuple[str, str]]:
    steps = [row.steps for row in rows]
    total = sum(row.total or 0.0 for row in rows)
    return [
        ("variants", str(len(rows))),
        ("steps", str(steps[0]) if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)}"),
        ("in steps, all together", f"{total:.1f} s"),
    ]


def _results(rows: Sequence[Row]) -> str:
    columns = column_texts(rows)
    with_values = columns_with_values(columns)
    shown = [n for n in _ORDER if n in with_values]
    numbers = "".join(f'<th class="number">{_COLUMNS[n]}</th>' for n in shown)
    head = f"<th>Variant</th>{numbers}<th>State</th>"
    body = "".join(
        f"<tr><td>{_named(number, row.measured.variant.name)}</td>"
        + "".join(f'<td class="number">{text_of(columns[n][number])}</td>' for n in shown)
        + f"<td>{text_of(row.measured.state)}</td></tr>"
        for number, row in enumerate(rows)
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _further(rows: Sequence[Row]) -> str:
    """Return a table of the further metrics, a line each."""
    metrics = metric_columns(rows)
    if not metrics:
        return ""
    names = "".join(
        f'<th class="number">{_named(number, row.measured.variant.name)}</th>' for number, row in enumerate(rows)
    )
    body = "".join(
        f"<tr><td>{text_of(name)}</td>"
        + "".join(f'<td class="number">{text_of(text)}</td>' for text in texts)
        + "</tr>"
        for name, texts in metrics
    )
    return f'<div class="wide"><table><thead><tr><th>Metric</th>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _differs(rows: Sequence[Row]) -> str:
    keys = [key for key, _ in rows[0].measured.variant.values]
    head = "".join(f"<th>{text_of(key)}</th>" for key in ("Variant", *keys))
    body = "".join(
        f"<tr><td>{_named(number, row.measured.variant.name)}</td>"
        + "".join(f"<td><code>{text_of(value)}</code></td>" for _, value in row.measured.variant.values)
        + "</tr>"
        for number, row in enumerate(rows)
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _compared(rows: Sequence[Row], about: About) -> str:
    facts = [("job", about.name), ("slice", about.slice), ("command", about.command), ("workdirs", about.workdir)]
    facts += [(f"run of {run.variant.label}", run.run_id or "-") for row in rows for run in row.runs]
    body = "".join(f"<tr><th>{text_of(name)}</th><td>{text_of(value)}</td></tr>" for name, value in facts if value)
    return f'<table class="facts"><tbody>{body}</tbody></table>'


def _named(number: int, name: str) -> str:
    """Return the name of variant `number`, after its colour."""
    return f'<span class="name"><i class="swatch" data-colour="c{number % _COLOURS}"></i>{text_of(name)}</span>'


# --- step times -----------------------------------------------------------------------------------------------------


def _times(rows: Sequence[Row]) -> str:
    times = [[seconds for run in row.runs for seconds in step_times(run.steps).values()] for row in rows]
    spreads = [spread_of(some) if some else None for some in times]
    highest = max((spread.high for spread in spreads if spread), default=0.0)
    if not highest:
        return ""
    ticks = ticks_to(highest)
    unit, scale = ("s", 1.0) if highest >= 10 else ("ms", 1000.0)
    body = "".join(
        _time_row(n, row, spread, ticks[-1]) for n, (row, spread) in enumerate(zip(rows, spreads, strict=True))
    )
    axis = "".join(f"<span>{tick * scale:.4g}</span>" for tick in ticks)
    note = "The box is the middle half of the steps, the line in it the median; nine tenths are within the whiskers."
    return section(
        "Step times",
        f'<p class="quiet">{note} The first step, which compiles, is left out.</p>'
        '<div class="wide"><table class="boxes"><thead><tr><th>Variant</th>'
        f'<th>Step time, {unit}</th><th class="number">Median, ms</th><th class="number">Speed-up (95 %)</th></tr></thead>'
        f"<tbody>{body}"
        f'<tr><td></td><td><div class="axis">{axis}</div></td><td></td><td></td></tr></tbody></table></div>',
    )


def _time_row(number: int, row: Row, spread: Spread | None, end: float) -> str:
    name = row.measured.variant.name
    named = _named(number, name)
    if spread is None:
        return f'<tr><td>{named}</td><td class="quiet">no step times</td><td></td><td></td></tr>'
    median, low, high = (f"{1000 * seconds:.4g}" for seconds in (spread.median, spread.low, spread.high))
    label = f"{text_of(name)}: median {median} ms, 90 % from {low} to {high} ms"
    return (
        f"<tr><td>{named}</td><td>{box_svg(spread, end, label)}</td>"
        f'<td class="number">{median}</td><td class="number">{text_of(speed_up(row))}</td></tr>'
    )


# --- curves ---------------------------------------------------------------------------------------------------------


def charts_of(rows: Sequence[Row]) -> list[Chart]:
    """Return the charts of training and validation loss, of the gradient norm and of further metrics, if they have values."""
    runs = [(run, number) for number, row in enumerate(rows) for run in row.runs]
    most = max(2, _MOST // len(runs))
    losses = [_curve(run, [(s.step, s.loss) for s in run.steps], number, most) for run, number in runs]
    evaluated = [_validation(run, number) for run, number in runs]
    norms = [_curve(run, [(s.step, s.grad_norm) for s in run.steps], number, most) for run, number in runs]
    names = dict.fromkeys(name for run, _ in runs for name in run.metrics if name != "grad_norm")
    charts = [
        Chart("loss", "Loss: lines in training, dots in validation", "", _present([*losses, *evaluated]), smooth=True),
        Chart("grad_norm", "Gradient norm", "", _present(norms)),
        *(
            Chart(
                key_of(name),
                name,
                "",
                _present([_curve(run, run.metrics.get(name, ()), number, most) for run, number in runs]),
                smooth=True,
                group=name.rpartition("/")[0],
            )
            for name in sorted(names, key=lambda name: name.rpartition("/")[0])
        ),
    ]
    return [chart for chart in charts if chart.series]


def _present(series: Sequence[Series | None]) -> list[Series]:
    return [one for one in series if one is not None]


def _curve(run: Measurement, values: Sequence[tuple[int, float | None]], number: int, most: int) -> Series | None:
    points = [(step, value) for step, value in values if value is not None]
    if not points:
        return None
    width = math.ceil(len(points) / most)
    groups = [points[start : start + width] for start in range(0, len(points), width)]
    lows, highs = ([pick(value for _, value in group) for group in groups] for pick in (min, max))
    x, y = [float(group[-1][0]) for group in groups], [group[-1][1] for group in groups]
    low, high = (lows, highs) if width > 1 else (None, None)
    return Series(run.variant.label, x, y, low, high, colour=number % _COLOURS)


def _validation(run: Measurement, number: int) -> Series | None:
    points = [(step, loss) for step, loss in run.evaluations if loss is not None]
    if not points:
        return None
    x, y = [float(step) for step, _ in points], [loss for _, loss in points]
    return Series(f"{run.variant.label}, validation", x, y, style="dots", colour=number % _COLOURS)
