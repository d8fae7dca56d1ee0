"""Plot the convergence and the step times of the variants. Only this module imports matplotlib."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.config import Config

from .table import Measurement, step_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart; grey replaces the faint yellow
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#7F7F7F")
_LINES = ("-", "--", "-.", ":", (0, (6, 1)), (0, (4, 1, 1, 1)), (0, (1, 1)), (0, (8, 4)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_MARKED = 60  # up to this many steps, each has a marker
_NOISY = 100  # from this many values, a running median is drawn over them
_LETTERS = 110  # characters per line of the legend
_WIDE = 20.0  # from this ratio of largest to smallest step time, the axis is logarithmic
_UNITS = {"language_model": " [nats per token]", "classification": " [nats per example]"}
_UNITS["logistic_regression"] = _UNITS["classification"]

Line = list[tuple[int, float]]


def can_plot() -> bool:
    return find_spec("matplotlib") is not None


def plot_convergence(file: Path, measured: Sequence[Measurement], configs: Sequence[Config], where: str) -> bool:
    """Plot the loss by iteration; for L-BFGS the gradient norm. Returns False if there is nothing to draw."""
    norms = {m.variant.label: [(s.step, s.grad_norm) for s in m.steps if s.grad_norm is not None] for m in measured}
    if configs and all(config.optimizer.whole_set for config in configs) and any(norms.values()):
        return _plot(file, norms, f"{where}: error by iteration", "error (norm of the gradient)", log=True)
    losses = {m.variant.label: [(s.step, s.loss) for s in m.steps if s.loss is not None] for m in measured}
    tasks = {config.task for config in configs}
    unit = _UNITS.get(tasks.pop(), "") if len(tasks) == 1 else ""
    noisy = any(config.batch_size != "all" for config in configs)
    label = f"training loss{unit}{_thick(losses) if noisy else ''}"
    return _plot(file, losses, f"{where}: training loss by iteration", label, log=True, noisy=noisy)


def plot_times(file: Path, measured: Sequence[Measurement], where: str) -> bool:
    """Plot the time of each step but the first. Returns False if there is nothing to draw."""
    times = {m.variant.label: step_times(m.steps) for m in measured}
    every = [seconds for line in times.values() for seconds in line.values()]
    if not every:
        return False
    unit, scale = ("s", 1.0) if statistics.median(every) >= 1 else ("ms", 1000.0)
    lines = {name: [(step, seconds * scale) for step, seconds in line.items()] for name, line in times.items()}
    log = max(every) > _WIDE * min(every)
    label = f"step time [{unit}]{_thick(lines)}"
    return _plot(file, lines, f"{where}: step time by iteration", label, log=log, noisy=True)


def _thick(lines: Mapping[str, Line]) -> str:
    return " (thick: running median)" if max(map(len, lines.values())) > _NOISY else ""


def running_median(line: Line) -> Line:
    """Return the running median. Its window extends over 1/40 of the points to each side."""
    values, around = [value for _, value in line], max(1, len(line) // 40)
    return [(step, statistics.median(values[max(0, i - around) : i + around + 1])) for i, (step, _) in enumerate(line)]


def _plot(file: Path, lines: dict[str, Line], title: str, y: str, *, log: bool, noisy: bool = False) -> bool:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = {name: line for name, line in lines.items() if line}
    values = [value for line in lines.values() for _, value in line]
    if not values:
        return False
    log = log and max(values) > 0
    columns = _columns(lines)
    figure = Figure(figsize=(8, 5 + 0.2 * math.ceil(len(lines) / columns)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, line) in enumerate(lines.items()):
        _draw(axes, number, len(lines), name, [p for p in line if p[1] > 0 or not log], noisy)
    hidden = sum(value <= 0 for value in values) if log else 0
    axes.set_xlabel(f"iteration ({hidden} values of 0 cannot be on a log axis)" if hidden else "iteration")
    axes.set_ylabel(y)
    axes.set_title(title, wrap=True)
    axes.grid(True, which="both", alpha=0.25)
    _scale_x(axes, [step for line in lines.values() for step, _ in line])
    if log:
        _scale_log(axes, [value for value in values if value > 0])
    elif min(values) >= 0:
        axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, handlelength=4, fontsize="small")
    figure.savefig(file, dpi=150)
    return True


def _columns(lines: dict[str, Line]) -> int:
    """Return how many columns of the legend fit below the plot."""
    return max(1, min(len(lines), _LETTERS // (max(map(len, lines)) + 12)))


def _draw(axes: Axes, number: int, count: int, name: str, line: Line, noisy: bool) -> None:
    """Draw a line. Earlier lines are wider, so that overlapping lines stay visible."""
    colour = _COLOURS[number % len(_COLOURS)]
    if noisy and len(line) > _NOISY:
        axes.plot(*zip(*line, strict=True), color=colour, linewidth=0.6, alpha=0.3)
        line = running_median(line)
    axes.plot(
        [step for step, _ in line],
        [value for _, value in line],
        color=colour,
        linestyle=_LINES[number % len(_LINES)],
        linewidth=2.6 - 1.4 * number / max(1, count - 1),
        marker=_MARKERS[number % len(_MARKERS)] if len(line) <= _MARKED else None,
        markersize=4,
        label=name,
    )


def _scale_x(axes: Axes, steps: list[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    margin = max(0.5, 0.02 * (max(steps) - min(steps)))
    axes.set_xlim(min(steps) - margin, max(steps) + margin)


def _scale_log(axes: Axes, values: list[float]) -> None:
    """Set up a log axis. If it spans few powers of ten, its ticks are plain numbers."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

    axes.set_yscale("log")
    ratio = max(values) / min(values)
    if ratio < 1000:
        axes.yaxis.set_major_locator(MaxNLocator(8) if ratio < 10 else LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.6g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
