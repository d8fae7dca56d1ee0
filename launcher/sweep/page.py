"""Build the page of a sweep: best so far, parallel coordinates, importance of the keys, and a table of the trials. PURE."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pydantic import JsonValue

from ..report.encode import drawn_data
from ..report.model import Chart, Series
from ..report.write_html import document, figures, section, text_of, tiles_of
from .importance import importance
from .output import name_of
from .space import text_of as value_text
from .state import SweepState, Trial, TrialState
from .sweep_file import Parameter

_WIDTH, _HEIGHT, _MARGIN = 1000, 300, 60  # units of the parallel coordinates, which are scaled to the page
_COLOURS = 7
"""Number of colours for the trials, from the best to the worst."""
_LABELS = 12  # listed values that an axis names


@dataclass(frozen=True)
class About:
    """Facts about the sweep for the page."""

    name: str
    slice: str
    folder: str
    command: str
    made: str
    space: Mapping[str, Parameter]


def page_of(state: SweepState, about: About, message: str) -> str:
    """Return the page: one self-contained HTML file. `message`: the last line of the command."""
    trials = state.ranked()
    charts = [_best_so_far(state)] if state.best else []
    parts = {
        "verdict": _verdict(state, message),
        "tiles": tiles_of(_tiles(state)),
        "metrics": figures("Best so far", charts, controls=False),
        "coordinates": _coordinates(state, about.space),
        "importance": _importance(state),
        "trials": section("Trials", _table(trials, state.ranking.metric)),
        "facts": section("The sweep", _facts(about)),
    }
    return document(
        f"{about.name}: {len(trials)} trials",
        f"podrun sweep by {state.ranking}, a trial on {about.slice}",
        {key: html for key, html in parts.items() if html},
        drawn_data(charts, []),
        about.made,
    )


def _verdict(state: SweepState, message: str) -> str:
    best = state.best
    title = "No trial is done" if best is None else f"Trial {best.number}: {name_of(best.number, best.values)}"
    kind = "done" if best else "failed"
    return (
        f'<section id="verdict" class="verdict {kind}"><h2>{text_of(title)}</h2>'
        f'<p class="cause">{text_of(message)}</p></section>'
    )


def _tiles(state: SweepState) -> list[tuple[str, str]]:
    tiles = [(one.value, str(len(state.in_state(one)))) for one in TrialState if state.in_state(one)]
    tiles.append(("runs", str(sum(len(trial.runs) for trial in state.trials.values()))))
    hours, minutes = divmod(round(state.seconds / 60), 60)
    return [*tiles, ("time", f"{hours}:{minutes:02d} h")]


def _best_so_far(state: SweepState) -> Chart:
    """Return the chart of the results by trial, in the order of their numbers, and of the best of them so far."""
    done = state.in_state(TrialState.DONE)
    unfinished = state.in_state(TrialState.WAITING, TrialState.RUNNING, TrialState.PAUSED)
    best = accumulate([trial.value or 0.0 for trial in done], max if state.ranking.is_max else min)
    series = [
        Series("best so far", [float(trial.number) for trial in done], [*best], colour=0),
        _dots("trial", done, 1),
        _dots("stopped early", state.in_state(TrialState.PRUNED), 2),
        _dots("not done yet", [trial for trial in unfinished if trial.rungs], 3),
    ]
    shown = [one for one in series if one.x]
    return Chart("best", f"{state.ranking.metric}, by the number of the trial", "", shown, axis="trial")


def _dots(name: str, trials: Sequence[Trial], colour: int) -> Series:
    values = [trial.result or 0.0 for trial in trials]
    return Series(name, [float(trial.number) for trial in trials], values, style="dots", colour=colour)


# --- parallel coordinates -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """An axis of the parallel coordinates: its name, a value's place on it from 0 (bottom) to 1, and its labels."""

    name: str
    place: Callable[[JsonValue], float]
    labels: Sequence[tuple[float, str]]


def _coordinates(state: SweepState, space: Mapping[str, Parameter]) -> str:
    """Return the section in which each trial is a line through its values, to its result on the last axis."""
    done = [trial for trial in state.ranked() if trial.result is not None]
    if len(done) < 2:
        return ""
    results = [trial.result or 0.0 for trial in done]
    axes = [
        *(_axis_of(key, space[key]) for key in space),
        _scale(state.ranking.metric, min(results), max(results), False),
    ]
    step = (_WIDTH - 2 * _MARGIN) / (len(axes) - 1)
    lines = [
        _line(trial, number, len(done), [(_MARGIN + step * n, axis) for n, axis in enumerate(axes)])
        for number, trial in [*enumerate(done)][::-1]  # the best is drawn last, over the others
    ]
    drawn = "".join(_drawn(_MARGIN + step * n, axis) for n, axis in enumerate(axes))
    svg = (
        f'<svg class="coordinates" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="Parallel coordinates of {len(done)} trials">{"".join(lines)}{drawn}</svg>'
    )
    note = "A line is a trial: its values, and its result on the last axis. The best seventh has the first colour, and so on."
    if any(trial.state is TrialState.PRUNED for trial in done):
        note += " Trials that were stopped early are dashed."
    if any(trial.state is not TrialState.DONE for trial in done):
        note += " Trials with the result of a rung are ranked after those that are done, a higher rung first."
    return section("Parallel coordinates", f'<p class="quiet">{note}</p>', f'<div class="wide">{svg}</div>')


def _axis_of(key: str, parameter: Parameter) -> _Axis:
    if parameter.values is None:
        assert parameter.min is not None and parameter.max is not None
        return _scale(key, parameter.min, parameter.max, parameter.log)
    texts = [value_text(value) for value in parameter.values]
    last = max(1, len(texts) - 1)
    labels = [(number / last, text) for number, text in enumerate(texts)]
    return _Axis(key, lambda value: texts.index(value_text(value)) / last, labels[:: math.ceil(len(labels) / _LABELS)])


def _scale(name: str, low: float, high: float, log: bool) -> _Axis:
    """Return the axis of a range of numbers."""
    span = (math.log(high / low) if log else high - low) or 1.0

    def place(value: JsonValue) -> float:
        assert isinstance(value, (int, float))
        return min(1.0, max(0.0, (math.log(value / low) if log else value - low) / span))

    return _Axis(name, place, [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")])


def _y(place: float) -> float:
    return round(_HEIGHT - 40 - place * (_HEIGHT - 80), 1)


def _line(trial: Trial, number: int, count: int, axes: Sequence[tuple[float, _Axis]]) -> str:
    *keys, (end, result) = axes
    points = [f"{x:.1f},{_y(axis.place(trial.values[axis.name]))}" for x, axis in keys]
    points.append(f"{end:.1f},{_y(result.place(trial.result))}")
    at = "" if trial.state is TrialState.DONE else f" at step {trial.step}"
    title = text_of(f"trial {trial.number}: {trial.result:.5g}{at}, {name_of(trial.number, trial.values)}")
    colour = f"line{number * _COLOURS // count}{' early' if trial.state is TrialState.PRUNED else ''}"
    return f'<polyline class="{colour}" points="{" ".join(points)}"><title>{title}</title></polyline>'


def _drawn(x: float, axis: _Axis) -> str:
    labels = "".join(f'<text x="{x + 4:.1f}" y="{_y(place) + 4}">{text_of(text)}</text>' for place, text in axis.labels)
    name = f'<text class="head" x="{x:.1f}" y="18" text-anchor="middle">{text_of(axis.name)}</text>'
    return f'<path d="M{x:.1f} {_y(0)}V{_y(1)}"/>{name}{labels}'


# --- tables ---------------------------------------------------------------------------------------------------------


def _importance(state: SweepState) -> str:
    shares = sorted(importance(state).items(), key=lambda row: -row[1])
    if not shares:
        return ""
    rows = "".join(
        f'<tr><td>{text_of(key)}</td><td class="number">{100 * share:.0f} %</td></tr>' for key, share in shares
    )
    note = (
        "The share of the variance of the results' ranks that the values of a key explain, by itself and without what chance "
        "explains; a range counts by its quarters."
    )
    if any(trial.rungs for trial in state.trials.values()):
        note += " The results are those at the first rung, which all trials have."
    head = '<thead><tr><th>Key</th><th class="number">Explains</th></tr></thead>'
    return section("Importance", f'<p class="quiet">{note}</p>', f"<table>{head}<tbody>{rows}</tbody></table>")


def _table(trials: Sequence[Trial], metric: str) -> str:
    keys = [*dict.fromkeys(key for trial in trials for key in trial.values)]
    head = "".join(f"<th>{text_of(key)}</th>" for key in ("Trial", metric, *keys, "State", "Last run"))
    body = "".join(
        f"<tr><td>{trial.number}</td>"
        f'<td class="number">{"-" if trial.result is None else f"{trial.result:.5g}"}</td>'
        + "".join(f"<td><code>{text_of(value_text(trial.values[key]))}</code></td>" for key in keys)
        + f"<td>{text_of(trial.described)}</td>"
        + f"<td><code>{text_of(trial.runs[-1] if trial.runs else '-')}</code></td></tr>"
        for trial in trials
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _facts(about: About) -> str:
    facts = [
        ("sweep", about.name),
        ("slice of a trial", about.slice),
        ("command", about.command),
        ("workdirs", about.folder),
    ]
    body = "".join(f"<tr><th>{text_of(name)}</th><td>{text_of(value)}</td></tr>" for name, value in facts)
    return f'<table class="facts"><tbody>{body}</tbody></table>'
