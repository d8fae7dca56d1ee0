"""Build the charts of a run's metrics from its records. PURE."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from podrun.runtime.events import metrics_of

from ..rundir.events import Row, UsageEvent
from .model import Chart, Mark, Progress, Series
from .records import StepRecord, finite

_BYTES = 1e9
_RATES = (("MB/s", 1.0), ("kB/s", 1e3), ("B/s", 1e6))
"""Units of network traffic, and how many of each are 1 MB/s."""
_MOST_SETS = 6  # validation sets that get dots of their own
_MOST_HOSTS = 8  # up to this many hosts get a curve each; for more, the mean and the range are shown


def curves(
    steps: Sequence[StepRecord],
    evaluations: Sequence[Row],
    marks: list[Mark],
    program: bool = False,
    begin: float | None = None,
) -> list[Chart]:
    """Return charts of loss, accuracy, learning rate, gradient norm, throughput and step time, if they have values.

    The charts of all other metrics follow, in groups by the part of their names before a slash. Each metric of a user
    `program` has a chart with the name that the program has given it.

    `begin` is the time at which the run began; None: the time of its first step.
    """
    charts = _of_program(steps, evaluations, marks) if program else _of_job(steps, evaluations, marks)
    progress = _progress(steps, begin)
    return [replace(chart, series=[replace(one, progress=progress) for one in chart.series]) for chart in charts]


def _progress(steps: Sequence[StepRecord], begin: float | None) -> Progress | None:
    """Return when each step was done; of a step that was repeated, the last time. None if the steps have no times."""
    rows: list[tuple[float, float, float | None]] = []
    for record in steps:
        step, at = finite(record.values.get("step")), finite(record.values.get("time"))
        if step is None or at is None:
            return None
        while rows and rows[-1][0] >= step:
            rows.pop()
        rows.append((step, at, finite(record.values.get("tokens_seen"))))
    if not rows:
        return None
    first = rows[0][1] if begin is None else begin
    tokens = [count for _, _, count in rows if count is not None]
    return Progress(
        [step for step, _, _ in rows], [at - first for _, at, _ in rows], tokens if len(tokens) == len(rows) else None
    )


def _of_job(steps: Sequence[StepRecord], evaluations: Sequence[Row], marks: list[Mark]) -> list[Chart]:
    loss = _loss(steps)
    measured = [
        Chart("loss", "Loss", "", [*_present(loss), *_evaluated(evaluations, "loss")], marks=marks, smooth=True),
        Chart(
            "accuracy",
            "Accuracy",
            "",
            [*_present(_column(steps, "accuracy", "training")), *_evaluated(evaluations, "accuracy")],
            smooth=True,
        ),
        Chart("learning_rate", "Learning rate", "", _present(_column(steps, "learning_rate", "learning rate"))),
        Chart("grad_norm", "Gradient norm", "", _present(_column(steps, "grad_norm", "gradient norm"))),
        _throughput(steps),
        Chart(
            "step_time",
            "Step time",
            "ms",
            _present(
                _column(steps, "step_seconds_p50", "median", 1000),
                _column(steps, "step_seconds_p95", "95th percentile", 1000),
            ),
        ),
        Chart("mfu", "Share of the devices' peak (MFU)", "%", _present(_column(steps, "mfu", "MFU", 100)), most=None),
    ]
    return [*(chart for chart in measured if chart.series), *_of_others(steps, evaluations)]


def _of_program(steps: Sequence[StepRecord], evaluations: Sequence[Row], marks: list[Mark]) -> list[Chart]:
    in_training = dict.fromkeys(name for record in steps for name in metrics_of(record.values))
    in_evaluations = dict.fromkeys(name for row in evaluations for name in metrics_of(row))
    validation_loss = "loss"
    if "loss" in in_training and "loss" not in in_evaluations:
        others = (name for name in VALIDATION_LOSSES if name in in_evaluations and name not in in_training)
        validation_loss = next(others, "loss")
    charts = []
    for name in in_training | in_evaluations:
        if name == validation_loss != "loss":
            continue  # dots in the chart of the loss
        trained = _loss(steps) if name == "loss" else _column(steps, name, "training")
        evaluated = validation_loss if name == "loss" else name
        series = _present(trained, _series(evaluations, evaluated, "validation", "dots", 1.0))
        if series:
            group = name.rpartition("/")[0]
            charts.append(Chart(key_of(name), name, _unit(name), series, smooth=True, group=group))
    ordered = sorted(charts, key=lambda chart: chart.group)
    marked = next((chart for chart in ordered if chart.key == "loss"), None) or next(iter(ordered), None)
    return [replace(chart, marks=marks) if chart is marked else chart for chart in ordered]


def _loss(steps: Sequence[StepRecord]) -> Series | None:
    """Return the training loss as a curve with a band: the range of the records left out. None without a loss."""
    loss = _column(steps, "loss", "training")
    if loss is None:
        return None
    bounds = [(record.lowest, record.highest) for record in steps if finite(record.values.get("loss")) is not None]
    if all(low == high for low, high in bounds):
        return loss
    return Series(loss.name, loss.x, loss.y, [low for low, _ in bounds], [high for _, high in bounds])


VALIDATION_LOSSES = ("val/loss", "valid/loss", "validation/loss", "eval/loss")
"""Names of the validation loss in a program's report of an evaluation, which may also call it `loss`."""
MEASURED = frozenset(
    ("loss", "accuracy", "learning_rate", "grad_norm", "tokens_per_second", "examples_per_second", "seconds_per_step")
) | {"step_seconds_p50", "step_seconds_p95", "mfu", "tokens_seen"}
"""Metrics that have charts or tiles of their own."""


def _of_others(steps: Sequence[StepRecord], evaluations: Sequence[Row]) -> list[Chart]:
    """Return a chart for each metric without a fixed chart, with its values in training and in evaluations."""
    in_training = dict.fromkeys(name for record in steps for name in metrics_of(record.values))
    names = in_training | dict.fromkeys(name for row in evaluations for name in metrics_of(row))
    charts = []
    for name in names:
        # The loss and the accuracy of a set with a name are dots in the charts of loss and accuracy.
        is_drawn = name not in in_training and name.endswith(("/loss", "/accuracy"))
        if name in MEASURED or is_drawn:
            continue
        title, unit, scale = _title(name)
        series = _present(
            _column(steps, name, "training", scale), _series(evaluations, name, "validation", "dots", scale)
        )
        if series:
            group, slash, _ = name.rpartition("/")
            charts.append(Chart(key_of(name), title, unit, series, smooth=True, group=group if slash else ""))
    return sorted(charts, key=lambda chart: chart.group)  # a stable sort: within a group as they were reported


def _title(name: str) -> tuple[str, str, float]:
    """Return the title of a metric's chart, its unit, and the factor for its values. Shares of the time are in percent."""
    if name.startswith(("share_in_", "share_waiting_")):
        return f"Time {name.removeprefix('share_').replace('_', ' ')}", "%", 100.0
    return name, _unit(name), 1.0


def key_of(name: str) -> str:
    """Return the key of a metric's chart, which identifies its element on the page. Works for any name."""
    if name in MEASURED:
        return name
    return f"metric-{zlib.crc32(name.encode('utf-8', 'surrogatepass')):08x}"


def _unit(name: str) -> str:
    """Return the unit that a metric's name ends with, such as `ms` for `step_ms`; empty if there is none."""
    return {"seconds": "s", "s": "s", "ms": "ms", "bytes": "bytes", "gb": "GB", "percent": "%"}.get(
        name.lower().rpartition("_")[2] if "_" in name else "", ""
    )


def _throughput(steps: Sequence[StepRecord]) -> Chart:
    for unit in ("tokens", "examples"):
        if column := _column(steps, f"{unit}_per_second", unit):
            return Chart("throughput", "Throughput", f"{unit}/s", [column])
    return Chart("throughput", "Throughput", "", [])


def _present(*series: Series | None) -> list[Series]:
    return [one for one in series if one is not None]


def _column(steps: Sequence[StepRecord], key: str, name: str, scale: float = 1.0) -> Series | None:
    return _series([record.values for record in steps], key, name, "line", scale)


def _evaluated(evaluations: Sequence[Row], key: str) -> list[Series]:
    """Return the curves of a metric on the validation set and on each named set, whose metric is `NAME/key`."""
    ends = f"/{key}"
    sets = {name: name.removesuffix(ends) for row in evaluations for name in row if name.endswith(ends)}
    named = [*sets.items()][:_MOST_SETS]
    return _present(*(_series(evaluations, one, name, "dots", 1.0) for one, name in [(key, "validation"), *named]))


def _series(rows: Sequence[Row], key: str, name: str, style: str, scale: float) -> Series | None:
    """Return the finite values of a column as a curve over the step; None if there are none."""
    points = [(row["step"], value * scale) for row in rows if (value := finite(row.get(key))) is not None]
    if not points:
        return None
    return Series(name, [x for x, _ in points], [y for _, y in points], style=style)


def usage_charts(events: Sequence[UsageEvent], begin: float) -> list[Chart]:
    """Return charts of the utilization of hosts and GPUs over time."""
    by_host: dict[str, list[UsageEvent]] = {}
    for event in events:
        by_host.setdefault(event["host"], []).append(event)
    total = max((event["memory_total"] for event in events), default=0) / _BYTES
    gpu_total = max((d["memory_total"] or 0 for event in events for d in event["devices"]), default=0) / _BYTES
    wanted: list[tuple[str, str, str, Callable[[UsageEvent], float | None], float | None]] = [
        ("gpu", "GPUs busy, mean of a host", "%", lambda e: _mean([d["busy"] for d in e["devices"]], 100), 100.0),
        (
            "gpu_memory",
            "GPU memory, mean of a host",
            "GB",
            lambda e: _mean([d["memory"] for d in e["devices"]], 1e-9),
            gpu_total,
        ),
        ("cpu", "CPU, all cores", "%", lambda e: e["cpu"] * 100, 100.0),
        ("memory", "Memory of the host", "GB", lambda e: e["memory"] / _BYTES, total or None),
        ("network", "Network, both ways", "MB/s", lambda e: (e["received"] + e["sent"]) / 1e6, None),
    ]
    charts = []
    for key, title, unit, value, most in wanted:
        lines = []
        for host, rows in by_host.items():
            points = [(e["time"] - begin, number) for e in rows if (number := value(e)) is not None]
            if len(points) > 1:  # a single point is no curve
                lines.append(Series(host, [x for x, _ in points], [y for _, y in points]))
        if lines and key == "network":
            largest = max(max(line.y) for line in lines)
            unit, scale = next((row for row in _RATES if largest * row[1] >= 1.0), _RATES[-1])
            lines = [replace(line, y=[scale * value for value in line.y]) for line in lines]
        if lines:
            few = lines if len(lines) <= _MOST_HOSTS else [_merged(lines)]
            charts.append(Chart(key, title, unit, few, axis="time", most=most))
    return charts


def _mean(values: Sequence[float | None], scale: float) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) * scale if known else None


def _merged(lines: list[Series]) -> Series:
    """Return one curve with the mean over all hosts, and a band for their range, at the times of the first host."""
    count = min(len(line.y) for line in lines)
    columns = [[line.y[n] for line in lines] for n in range(count)]
    means = [sum(column) / len(column) for column in columns]
    return Series(
        f"mean of {len(lines)} hosts, and their range",
        lines[0].x[:count],
        means,
        [min(column) for column in columns],
        [max(column) for column in columns],
    )
