"""The best evaluation by `eval.best`, and the early end of a training by `eval.patience`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from pydantic import ValidationError

from podrun.runtime.config import Config
from podrun.runtime.config.task import TASKS
from podrun.runtime.contract import CHECKPOINT_METRICS, UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.ranking import BestSoFar, Ranking, check_saved
from podrun.runtime.tasks import make_task

from .training import train

NAN = float("nan")


def best_of(ranking: str, *values: Any) -> BestSoFar:
    best = BestSoFar(Ranking.parse(ranking))
    for number, value in enumerate(values, 1):
        best.add(10 * number, {"loss": 5.0, "accuracy": value})
        check_saved(json.loads(json.dumps(best.saved())))
    return best


def test_a_metric_with_spaces_in_its_name() -> None:
    best = BestSoFar(Ranking.parse("max  val/top 1 "))
    best.add(10, {"val/top 1": 0.5})
    again = BestSoFar(Ranking.parse(str(best.ranking)))
    again.restore(best.saved())
    assert (best.ranking.metric, again.value) == ("val/top 1", 0.5)
    for text in ("val/top 1", "max", "maximum x", ""):
        with pytest.raises(ValueError, match="must be min or max"):
            Ranking.parse(text)


@pytest.mark.parametrize(
    ("ranking", "values", "step", "since"),
    [
        ("max accuracy", [0.5], 10, 0),
        ("max accuracy", [0.5, 0.4, 0.6, 0.6, 0.5], 30, 2),
        ("min accuracy", [0.5, 0.4, 0.6, 0.4], 20, 2),
        ("max accuracy", [NAN, NAN], 0, 2),
        ("max accuracy", [NAN, 0.0, NAN], 20, 1),
        ("max accuracy", [0.5, float("inf"), "0.9", None, 10**400], 10, 4),
        ("min loss", [0, 0, 0], 10, 2),
    ],
)
def test_the_best_so_far(ranking: str, values: list[Any], step: int, since: int) -> None:
    """An equal evaluation is no better one; one that is not finite never is."""
    best = best_of(ranking, *values)
    assert (best.step, best.since) == (step, since)
    again = BestSoFar(Ranking.parse(ranking))
    again.restore(json.loads(json.dumps(best.saved())))
    assert again == best
    other = BestSoFar(Ranking.parse("max other"))
    other.restore(best.saved())
    assert other.since == 0


@pytest.mark.parametrize("text", ["accuracy", "max", "maximum loss", ""])
def test_what_is_no_order(text: str) -> None:
    with pytest.raises(ValidationError, match="must be min or max, and a metric, such as `min loss`"):
        Config.model_validate({"steps": 1, "batch_size": 1, "eval": {"best": text}})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"best": "max f1"},
            "eval.best: an evaluation of task classification has no metric 'f1'; it has loss, accuracy",
        ),
        ({"best": "min accuracy"}, "'min accuracy' is the worst evaluation; write 'max accuracy'"),
        ({"patience": 2, "every": 0}, r"eval.patience 2 counts evaluations, but there are none before the end"),
        ({"patience": 0}, "patience"),
    ],
)
def test_mistakes(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Config.model_validate({"task": "classification", "steps": 9, "batch_size": 8, "eval": keys})


@pytest.mark.parametrize("task", [task for task in TASKS if task != "dpo"])
def test_the_metrics_of_each_task_are_known(task: str) -> None:
    """The table of tasks has those that an evaluation gives, so that a mistake is found before the start.

    Task dpo has no data that is on every machine: see tasks/test_dpo.py.
    """
    small = {"model": {"layers": 1}} if task == "language_model" else {}
    config = Config.model_validate(
        {"task": task, "steps": 1, "batch_size": 8 if TASKS[task].batch_size is None else "all", **small}
    )
    data = load_dataset(config)
    one = make_task(config, data)
    batch = data.validation.gather(np.zeros(1, np.int64), np.zeros(1, np.int64))
    batch = {**batch, "weights": np.ones(batch["tokens"][:, 1:].shape if "tokens" in batch else 1, np.float32)}
    shapes = jax.eval_shape(lambda key: one.evaluate(one.init(key), batch), jax.random.key(0))
    sums = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), shapes)
    assert {metric.split()[1] for metric in TASKS[task].metrics} == set(one.summarize(sums))


KEYS: dict[str, Any] = {
    "steps": 40,
    "batch_size": 8,
    "optimizer": {"name": "sgd", "learning_rate": 1e-30},  # nothing ever gets better
    "eval": {"every": 3, "patience": 4},
    "checkpoint": {"every": 6, "keep": 9},
}


def test_a_training_ends_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A resumed one ends early too, at the same step; with more patience it goes on, and with another metric anew."""
    assert train(tmp_path / "a", **KEYS)[0] == 15
    text = "training ends early at step 15 of 40: the best loss is"
    assert text in capsys.readouterr().out
    assert train(tmp_path / "b", until=6, **KEYS)[0] == 6
    assert train(tmp_path / "b", **KEYS)[0] == 15
    assert text in capsys.readouterr().out
    metrics = json.loads((tmp_path / "b" / "checkpoints" / "15" / CHECKPOINT_METRICS).read_text())
    assert metrics.keys() == {"loss", "rmse"}
    assert train(tmp_path / "b", **KEYS)[0] == 15
    assert text in capsys.readouterr().out
    assert train(tmp_path / "b", **{**KEYS, "eval": {"every": 3, "patience": 5}})[0] == 18
    assert train(tmp_path / "b", **{**KEYS, "eval": {"every": 3, "patience": 2, "best": "min rmse"}})[0] == 27


def test_a_metric_that_a_users_task_lacks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"eval.best: an evaluation has no metric 'f1'; it has loss, rmse"):
        train(
            tmp_path,
            **{
                **KEYS,
                "task": "podrun.runtime.tasks.regression:Regression",
                "model": "mlp",
                "eval": {"every": 3, "best": "max f1"},
            },
        )
