"""Counts of steps and examples are values, made from a config and the size of its data."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.runtime.config import Config
from podrun.runtime.data.base import Dataset
from podrun.runtime.job_counts import JobCounts, is_due

EXAMPLES = 40


class Sized:
    size = EXAMPLES


def counts(**keys: Any) -> JobCounts:
    data: Any = Sized()
    job = {"task": "regression", "data": {"name": "sine"}, "batch_size": 8, **keys}
    return JobCounts.at_start(Config.model_validate(job), Dataset(data, data, b""))


def test_epochs_end_where_their_examples_do() -> None:
    """An epoch of 40 examples ends with the fifth step of 8, and the job with the second epoch."""
    job = counts(epochs=2)
    assert [job.advance() for _ in range(10)] == [None, None, None, None, 1, None, None, None, None, 2]
    assert (job.step, job.position, job.steps, job.is_over) == (10, 80, 10, True)


def test_a_batch_of_all_examples_is_an_epoch() -> None:
    job = counts(epochs=2, batch_size="all")
    assert (job.advance(), job.advance(), job.position) == (1, 2, 80)


@pytest.mark.parametrize(
    ("keys", "now", "at", "steps"),
    [
        ({"epochs": 3}, {"epochs": 3}, 24, 15),
        ({"epochs": 3}, {"epochs": 3, "batch_size": 24}, 24, 7),  # 96 examples are left
        ({"steps": 9}, {"steps": 9, "batch_size": 24}, 24, 9),
        ({"epochs": 3, "drop_last": True}, {"epochs": 3, "drop_last": True, "batch_size": 12}, 24, 10),
        ({"epochs": 3, "drop_last": True}, {"epochs": 3, "drop_last": True, "batch_size": 20}, 20, 8),
    ],
)  # fmt: skip
def test_a_checkpoint_goes_on(keys: dict[str, Any], now: dict[str, Any], at: int, steps: int) -> None:
    """With another batch size, the rest of the epochs is as many steps as it fills."""
    before, after = counts(**keys), counts(**now)
    for _ in range(3):
        before.advance()
    after.resume(before.step, before.position, before.counters())
    assert (after.step, after.position, after.steps) == (3, at, steps)


def test_a_checkpoint_keeps_the_sums_of_its_epoch_and_its_best_evaluation() -> None:
    keys = {"epochs": 2, "eval": {"best": "min loss", "patience": 2}}
    before, after = counts(**keys), counts(**keys)
    assert before.epoch is not None
    before.advance()
    before.epoch.add({"loss": 3.0})
    before.add_evaluation({"loss": 0.5})
    after.resume(before.step, before.position, before.counters(["state"]))
    assert after.counters(["state"]) == before.counters(["state"])._replace(evaluated=False)
    assert (after.best.step, after.best.value, after.is_over) == (1, 0.5, False)


def test_an_evaluation_belongs_to_its_step() -> None:
    job = counts(steps=5)
    assert job.evaluation() is None
    assert job.add_evaluation({"loss": 1.0}) and job.evaluation() == {"loss": 1.0}
    job.advance()
    assert job.evaluation() is None


def test_an_evaluation_without_the_ranking_metric_is_told_and_not_ranked() -> None:
    job = counts(steps=5, eval={"best": "min rmse", "patience": 1})
    assert not job.add_evaluation({"loss": 1.0})
    assert (job.best.since, job.is_over) == (0, False)


def test_training_ends_early_when_no_evaluation_is_better() -> None:
    job = counts(steps=5, eval={"patience": 2})
    for loss in (0.5, 0.7, 0.6):
        assert not job.is_over
        job.advance()
        job.add_evaluation({"loss": loss})
    assert job.is_over
    assert job.early_end().startswith(
        "training ends early at step 3 of 5: the best loss is 0.5 of step 1, 2 evaluations ago"
    )


def test_training_ends_early_when_no_evaluation_is_finite() -> None:
    job = counts(steps=5, eval={"patience": 1})
    job.add_evaluation({"loss": float("nan")})
    assert "1 evaluations had no finite loss" in job.early_end()


def test_the_last_step_is_logged_in_any_case() -> None:
    job = counts(steps=5, log={"every": 2})
    assert [step for step in range(1, 6) if job.is_logged(step)] == [2, 4, 5]
    assert not is_due(3, 0)
