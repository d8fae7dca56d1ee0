"""The charts of a run's metrics."""

from __future__ import annotations

import re
from typing import Any

import pytest

from podrun.launcher.report.curves import curves, key_of, usage_charts
from podrun.launcher.report.encode import drawn_data
from podrun.launcher.report.records import StepRecord
from podrun.launcher.report.write_html import figures
from podrun.runtime.lines import describe_eval


def evaluation(step: int, **metrics: float) -> Any:
    return {"event": "eval", "step": step, "time": 1.0, **metrics}


def test_validation_sets_with_names() -> None:
    """Each has dots of its own in the chart of its metric, and its loss in the line of an evaluation."""
    named = {"web/loss": 2.5, "web/accuracy": 0.25, "code/loss": 3.5, "code/accuracy": 0.125}
    evaluations = [evaluation(step, loss=3.0, accuracy=0.5, perplexity=20.0, **named) for step in (10, 20)]
    charts = {chart.key: chart for chart in curves([], evaluations, [])}
    assert [(one.name, one.y) for one in charts["loss"].series] == [
        ("validation", [3.0, 3.0]),
        ("web", [2.5, 2.5]),
        ("code", [3.5, 3.5]),
    ]
    assert [one.name for one in charts["accuracy"].series] == ["validation", "web", "code"]
    line = "validation at step 10: loss 3.0000  accuracy 0.5000  perplexity 20.0000  web/loss 2.5000  code/loss 3.5000"
    assert describe_eval(evaluations[0]) == line


def test_very_many_sets() -> None:
    named = {f"set{n}/loss": 1.0 for n in range(40)}
    (chart,) = curves([], [evaluation(1, loss=2.0, **named)], [])
    assert len(chart.series) < 10


def record(step: int, **metrics: float) -> StepRecord:
    values: Any = {"event": "step", "step": step, "time": 1.0, "elapsed": 2.0, "waited": 3.0, **metrics}
    return StepRecord(values, 0.0, 0.0)


def test_metrics_of_any_name() -> None:
    """Each has a chart, with its evaluations; those with a slash stand under what is before it, and fields have none."""
    steps = [record(n, loss=1.0, f1=0.5 * n, **{"val/auc": 0.25, "train/step_ms": 12.0}) for n in (1, 2)]
    charts = curves(steps, [evaluation(2, f1=0.75, bleu=0.125, **{"test/loss": 2.0, "test/bleu": 0.5})], [])
    assert [(chart.title, chart.group, chart.unit) for chart in charts] == [
        ("Loss", "", ""),
        ("f1", "", ""),
        ("bleu", "", ""),
        ("test/bleu", "test", ""),
        ("train/step_ms", "train", "ms"),
        ("val/auc", "val", ""),
    ]
    f1 = charts[1]
    assert [(one.name, one.style, one.x, one.y) for one in f1.series] == [
        ("training", "line", [1, 2], [0.5, 1.0]),
        ("validation", "dots", [2], [0.75]),
    ]
    keys = {key_of(name) for name in ("f1", "a b", 'x"><script>', "", "\ud7ff")}
    assert len(keys) == 5 and all(re.fullmatch(r"metric-[0-9a-f]{8}", key) for key in keys)


def test_shares_of_the_time_have_titles_and_percent() -> None:
    """Other metrics keep their names."""
    shares = {"share_waiting_for_data": 0.25, "share_in_evaluation": 0.5, "share_price": 2.0}
    charts = curves([record(n, loss=1.0, **shares) for n in (1, 2)], [], [])
    assert [(chart.title, chart.unit, chart.series[0].y[0]) for chart in charts[1:]] == [
        ("Time waiting for data", "%", 25.0),
        ("Time in evaluation", "%", 50.0),
        ("share_price", "", 2.0),
    ]


def test_metrics_of_a_program_keep_their_names() -> None:
    """`val/accuracy` is no dot in a chart called Accuracy, and a time of the program's is none of podrun's.

    `val/loss` is dots in the chart of the loss, as on the page of a comparison.
    """
    steps = [record(n, loss=1.0, accuracy=0.5, seconds_per_step=2.0, **{"train/loss": 1.0}) for n in (1, 2)]
    evaluations = [evaluation(2, accuracy=0.75, **{"val/accuracy": 0.5, "val/loss": 2.0})]
    charts = curves(steps, evaluations, [], program=True)
    assert [(chart.key in ("loss", "accuracy"), chart.title, chart.group) for chart in charts[:3]] == [
        (True, "loss", ""),
        (True, "accuracy", ""),
        (False, "seconds_per_step", ""),
    ]
    assert [chart.title for chart in charts[3:]] == ["train/loss", "val/accuracy"]
    assert [(one.name, one.y) for one in charts[0].series] == [("training", [1.0, 1.0]), ("validation", [2.0])]
    for both in (evaluation(2, loss=3.0, **{"val/loss": 2.0}), evaluation(2, **{"val/loss": 2.0, "eval/loss": 3.0})):
        drawn = [y for chart in curves(steps, [both], [], program=True) for one in chart.series for y in one.y]
        assert 2.0 in drawn and 3.0 in drawn  # each in some chart
    assert [(one.name, one.y) for one in charts[1].series] == [("training", [0.5, 0.5]), ("validation", [0.75])]


def test_evaluations_of_other_sets_are_on_the_line() -> None:
    """Also if only one of their metrics is a loss; very many are counted."""
    assert describe_eval(evaluation(1, **{"test/loss": 2.0, "test/f1": 0.5})).endswith(
        "test/loss 2.0000  test/f1 0.5000"
    )
    assert describe_eval(evaluation(1, **{f"m{n}": 1.0 for n in range(20)})).endswith("m7 1.0000  and 12 more")


@pytest.mark.parametrize(
    ("sent", "unit", "value"), [(80, "B/s", 80), (8000, "kB/s", 8.0), (5e6, "MB/s", 5.0), (0, "B/s", 0)]
)
def test_little_traffic_has_a_small_unit(sent: float, unit: str, value: float) -> None:
    usage: Any = {"host": "h", "cpu": 0.5, "memory": 1, "memory_total": 2, "received": 0, "sent": sent, "devices": []}
    charts = {chart.key: chart for chart in usage_charts([{**usage, "time": float(at)} for at in (1, 2)], 0.0)}
    network = charts["network"]
    assert (network.unit, network.series[0].y) == (unit, [pytest.approx(value)] * 2)


def test_very_many_metrics() -> None:
    """The page draws the first, and says how many it leaves out."""
    charts = curves([record(1, **{f"m{n}": 1.0 for n in range(1000)})], [], [])
    drawn = [chart["key"] for chart in drawn_data(charts, [])["charts"]]
    html = figures("Metrics", charts, controls=True)
    assert drawn == [chart.key for chart in charts[:80]]
    assert html.count("<figure") == 80 and "920 further metrics have no chart here" in html
