"""The value by which a trial is ranked."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.compare.collect import evaluations, metrics, steps
from podrun.launcher.compare.table import Measurement, VariantState
from podrun.launcher.compare.variants import Variant
from podrun.launcher.sweep.result import NoResult, result_of

NAN = float("nan")


def measured(*records: tuple[str, int, dict[str, float]], is_program: bool = True) -> Measurement:
    """Return the measurements of a run whose metrics.jsonl has these records: kind, step and metrics."""
    rows: list[dict[str, Any]] = [{"kind": kind, "step": step, **values} for kind, step, values in records]
    return Measurement(
        Variant("a", "a", ()),
        VariantState.DONE,
        steps=steps(rows),
        evaluations=evaluations(rows),
        metrics=metrics(rows, {"loss"}),
        is_program=is_program,
    )


def test_the_value_that_was_reported_last_counts() -> None:
    """Also of training metrics of a program, of which a comparison shows means."""
    every = [("train", step, {"score": step / 20, "loss": 1 / step}) for step in range(1, 21)]
    assert result_of(measured(*every), "score", None) == ("score", 1.0)
    assert result_of(measured(*every), "loss", None) == ("training loss", 0.05)


@pytest.mark.parametrize("kind", ["train", "eval"])
@pytest.mark.parametrize("metric", ["score", "loss"])
def test_a_run_that_began_again_is_not_ranked_by_later_steps_of_the_run_before(kind: str, metric: str) -> None:
    """A program whose first run reached step 10, and whose second one ended at step 5."""
    records = [(kind, 5, {metric: 0.9}), (kind, 10, {metric: 0.95}), (kind, 4, {metric: 0.1}), (kind, 5, {metric: 0.3})]
    assert result_of(measured(*records), metric, None)[1] == 0.3


@pytest.mark.parametrize("kind", ["train", "eval"])
@pytest.mark.parametrize("metric", ["score", "loss"])
@pytest.mark.parametrize("last", [NAN, float("inf")])
def test_a_value_before_one_that_is_not_finite_does_not_count(kind: str, metric: str, last: float) -> None:
    run = measured((kind, 1, {metric: 0.9}), (kind, 2, {metric: last}))
    with pytest.raises(NoResult, match=rf"its last \w+ {metric}|{metric} is not a finite number"):
        result_of(run, metric, None)


def test_a_metric_of_validation_is_not_that_of_training() -> None:
    run = measured(("train", 2, {"accuracy": 1.0, "loss": 0.1}), ("eval", 2, {"accuracy": 0.2, "loss": 0.7}))
    for metric in ("accuracy", "validation accuracy"):
        assert result_of(run, metric, None) == ("validation accuracy", 0.2)
    for metric in ("loss", "validation loss"):
        assert result_of(run, metric, None) == ("validation loss", 0.7)
    with pytest.raises(NoResult, match="it has reported no validation recall, but validation loss, training loss,"):
        result_of(run, "validation recall", None)


def test_training_loss_does_not_take_the_place_of_validation_loss() -> None:
    diverged = measured(("train", 2, {"loss": 0.1}), ("eval", 2, {"loss": NAN}))
    with pytest.raises(NoResult, match="its last validation loss is not a finite number"):
        result_of(diverged, "loss", None)
    without = measured(("train", 2, {"loss": 0.2}))
    assert result_of(without, "loss", "training loss") == ("training loss", 0.2)
    with pytest.raises(
        NoResult, match="reported training loss in place of validation loss, by which the trials before"
    ):
        result_of(without, "loss", "validation loss")
