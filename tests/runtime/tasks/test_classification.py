"""Predicting labels: losses, accuracy, probabilities, and what does not fit."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.data.arrays import ArrayExamples, array_dataset
from podrun.runtime.data.base import Dataset
from podrun.runtime.tasks import make_task
from podrun.runtime.tasks.base import Task
from podrun.runtime.tasks.classification import Classification

from ..array_jobs import Array, job

CLASSES = 3


@functools.cache
def dataset() -> Dataset:
    noise = np.random.default_rng(0)
    pair = noise.normal(size=(20, 4)).astype(np.float32), (np.arange(20) % CLASSES).astype(np.int32)
    return array_dataset(pair, pair, CLASSES)


def task(name: str = "classification", model: Any = "linear") -> Task:
    return make_task(job(name, "digits", model=model), dataset())


def params(of: Task) -> Any:
    """Random ones, with which every class is the most likely one somewhere."""
    noise = np.random.default_rng(1)
    shapes = jax.eval_shape(of.init, jax.random.key(0))
    return jax.tree.map(lambda x: noise.normal(0, 1, x.shape).astype(np.float32), shapes)


def batch(weights: Any = None) -> dict[str, Array]:
    found = dataset().train.gather(np.arange(8), np.zeros(8, np.int64))
    return found if weights is None else {**found, "weights": np.asarray(weights, np.float32)}


def by_hand() -> tuple[Array, Array, Array]:
    """(losses, correct, probabilities) of the linear model by NumPy in float64, [8], [8] and [8, classes]."""
    head = params(task())["head"]
    logits = batch()["x"].astype(np.float64) @ head["kernel"] + head["bias"]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    y = batch()["y"]
    return -np.log(probabilities[np.arange(8), y]), (logits.argmax(-1) == y).astype(float), probabilities


# --- losses ---------------------------------------------------------------------------------------------------------


def test_loss_is_the_cross_entropy() -> None:
    """Its mean over the batch, and the share of labels that are the most likely class."""
    loss, metrics = jax.jit(task().loss)(params(task()), batch(), jax.random.key(0))
    losses, correct, _ = by_hand()
    assert 0 < correct.mean() < 1
    assert float(loss) == pytest.approx(losses.mean(), rel=1e-5)
    assert {key: float(value) for key, value in metrics.items()} == {"accuracy": correct.mean()}


class Noisy(Classification):
    """A user's task."""

    def loss(self, params: Any, batch: Any, key: jax.Array) -> Any:
        loss, metrics = super().loss(params, batch, key)
        return loss + jax.random.normal(key), metrics


def test_whether_the_key_is_used() -> None:
    """By dropout, by whatever a user's loss may do, and not otherwise."""
    assert not task().uses_key
    assert not task(model="mlp").uses_key
    assert task(model={"name": "mlp", "dropout": 0.1}).uses_key
    users = job("classification", "digits", model="linear").model_copy(update={"task": "noisy:Noisy"})
    assert Noisy(users, dataset()).uses_key


def test_weights_of_a_training_batch() -> None:
    """They say how much an example counts in the means; an example of weight 0 does not."""
    weights = np.array([0, 2, 1, 1, 0, 1.5, 1.5, 1])
    loss, metrics = jax.jit(task().loss)(params(task()), batch(weights), jax.random.key(0))
    losses, correct, _ = by_hand()
    assert float(loss) == pytest.approx((losses * weights).mean(), rel=1e-5)
    assert float(metrics["accuracy"]) == pytest.approx((correct * weights).mean())


def test_evaluation() -> None:
    """Sums over batches give the means over all examples; padding has no part in them."""
    losses, correct, _ = by_hand()
    of = task()
    parts = [batch([1, 1, 1, 0, 0, 0, 0, 0]), batch([0, 0, 0, 1, 1, 1, 0, 0])]
    sums: dict[str, float] = {}
    for part in parts:
        for key, value in jax.jit(of.evaluate)(params(of), part).items():
            sums[key] = sums.get(key, 0.0) + float(value)
    assert sums["count"] == 6
    assert of.summarize(sums) == pytest.approx({"loss": losses[:6].mean(), "accuracy": correct[:6].mean()}, rel=1e-5)


def test_predictions_are_probabilities() -> None:
    """And their score is the evaluation, so that it is one of averages as well; a probability of 0 is no infinite loss."""
    of = task()
    probabilities = np.asarray(jax.jit(of.predict)(params(of), batch()))
    np.testing.assert_allclose(probabilities, by_hand()[2], rtol=1e-4)
    weighted = batch(np.arange(8))
    score = jax.jit(of.score)
    scored, evaluated = score(probabilities, weighted), jax.jit(of.evaluate)(params(of), weighted)
    assert {k: float(v) for k, v in scored.items()} == pytest.approx(
        {k: float(v) for k, v in evaluated.items()}, rel=1e-5
    )
    certain = np.eye(CLASSES, dtype=np.float32)[(batch()["y"] + 1) % CLASSES]
    assert 80 < float(score(certain, batch(np.ones(8)))["loss"]) / 8 < 90


def test_equal_classes_are_no_answer() -> None:
    """If a model gives all classes the same, not every answer counts as correct."""
    of = task()
    zeros = of.init(jax.random.key(0))
    assert float(of.evaluate(zeros, batch(np.ones(8)))["correct"]) == (batch()["y"] == 0).sum()


@pytest.mark.parametrize("name", ["classification", "logistic_regression"])
def test_l2_is_added_to_the_loss_once(name: str) -> None:
    """Half of it times the squared weights, without biases; evaluation is without it."""
    plain, penalised = task(name), task(name, {"name": "linear", "l2": 0.5})
    p = params(plain)
    key = jax.random.key(0)
    for given in (batch(), batch(np.full(8, 1))):
        difference = penalised.loss(p, given, key)[0] - plain.loss(p, given, key)[0]
        assert float(difference) == pytest.approx(0.25 * (p["head"]["kernel"] ** 2).sum(), rel=1e-4)
    given = batch(np.ones(8))
    assert float(penalised.evaluate(p, given)["loss"]) == float(plain.evaluate(p, given)["loss"])


def test_dropout_in_training_only() -> None:
    """The key decides what is dropped; evaluation drops nothing."""
    of = task(model={"name": "mlp", "dropout": 0.5})
    p = params(of)
    losses = [float(of.loss(p, batch(), jax.random.key(key))[0]) for key in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    none = task(model={"name": "mlp"})
    given = batch(np.ones(8))
    assert float(of.evaluate(p, given)["loss"]) == float(none.evaluate(p, given)["loss"])


# --- what does not fit ----------------------------------------------------------------------------------------------


def refusal(data: Dataset, name: str = "classification") -> str:
    with pytest.raises(UserError) as raised:
        make_task(job(name, "digits", model="linear"), data)
    return str(raised.value)


@pytest.mark.parametrize("name", ["classification", "logistic_regression"])
def test_data_without_labels(name: str) -> None:
    """Targets that are values are for a regression."""
    x = np.zeros((4, 2), np.float32)
    message = refusal(array_dataset((x, x), (x, x)), name)
    assert message.startswith(f"data digits: its targets are float32[2], but task {name} learns labels")
    assert "take task: regression" in message


def test_data_with_one_class() -> None:
    """There is nothing to tell apart."""
    pair = np.zeros((4, 2), np.float32), np.zeros(4, np.int32)
    assert "it has 1 class, and task classification needs at least 2" in refusal(array_dataset(pair, pair, 1))


def test_data_without_arrays() -> None:
    """Examples of a user's own source may be something else."""

    class Tokens:
        size = 3

        def gather(self, indices: Array, epochs: Array) -> dict[str, Array]:
            return {"tokens": np.zeros((len(indices), 5), np.int32)}

    assert "its examples have tokens, but task classification learns y from x" in refusal(
        Dataset(Tokens(), Tokens(), b"")
    )


# --- the user's own model -------------------------------------------------------------------------------------------


def test_a_users_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called with options, outputs and dtype, and its module with x and deterministic."""
    from podrun.runtime.config.model import Linear as Section
    from podrun.runtime.models.linear import Linear

    calls = []

    def mine(options: Any, outputs: int, dtype: Any) -> Any:
        calls.append((options, outputs, str(dtype)))
        return Linear(Section(), outputs, dtype)

    module = types.ModuleType("my_model")
    module.mine = mine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_model", module)
    of = task(model={"name": "my_model:mine", "options": {"depth": 3}})
    assert calls == [({"depth": 3}, CLASSES, "float32")]
    assert float(of.loss(of.init(jax.random.key(0)), batch(), jax.random.key(0))[0]) == pytest.approx(np.log(CLASSES))


def test_examples_of_other_integer_types() -> None:
    """Labels of a user's source may be of any integer type."""
    x, y = np.zeros((4, 2), np.float32), np.arange(4, dtype=np.uint8) % 2
    data = Dataset(ArrayExamples(x, y), ArrayExamples(x, y, weighted=True), b"", shape=(2,), outputs=2)
    of = make_task(job("classification", "digits", model="linear"), data)
    given = data.train.gather(np.arange(4), np.zeros(4, np.int64))
    key = jax.random.key(0)
    assert float(jax.jit(of.loss)(jax.jit(of.init)(key), given, key)[0]) == pytest.approx(np.log(2))
