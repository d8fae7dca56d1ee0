"""The charts of a run's metrics."""

from __future__ import annotations

from typing import Any

from podrun.launcher.report.curves import curves
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
