"""Predicting values: squared errors, predictions, and what does not fit."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.data.arrays import array_dataset
from podrun.runtime.data.base import Dataset
from podrun.runtime.tasks import make_task
from podrun.runtime.tasks.base import Task

from ..array_jobs import Array, job


@functools.cache
def dataset() -> Dataset:
    """Three inputs, two values."""
    noise = np.random.default_rng(0)
    pair = noise.normal(size=(20, 3)).astype(np.float32), noise.normal(size=(20, 2)).astype(np.float32)
    return array_dataset(pair, pair)


def task(**model: Any) -> Task:
    return make_task(job("regression", "sine", model={"name": "linear", **model}), dataset())


def params() -> Any:
    noise = np.random.default_rng(1)
    shapes = jax.eval_shape(task().init, jax.random.key(0))
    return jax.tree.map(lambda x: noise.normal(0, 1, x.shape).astype(np.float32), shapes)


def batch(weights: Any = None) -> dict[str, Array]:
    found = dataset().train.gather(np.arange(8), np.zeros(8, np.int64))
    return found if weights is None else {**found, "weights": np.asarray(weights, np.float32)}


def errors() -> Array:
    """Squared errors of the linear model by NumPy in float64, mean over the values of an example, [8]."""
    head = params()["head"]
    given = batch()
    found: Array = ((given["x"].astype(np.float64) @ head["kernel"] + head["bias"] - given["y"]) ** 2).mean(-1)
    return found


def test_loss_is_the_mean_squared_error() -> None:
    """Over the batch; weights say how much an example counts."""
    loss, metrics = jax.jit(task().loss)(params(), batch(), jax.random.key(0))
    assert float(loss) == pytest.approx(errors().mean(), rel=1e-5)
    assert metrics == {}
    weights = np.array([0, 2, 1, 1, 0, 1.5, 1.5, 1])
    weighted, _ = jax.jit(task().loss)(params(), batch(weights), jax.random.key(0))
    assert float(weighted) == pytest.approx((errors() * weights).mean(), rel=1e-5)


def test_evaluation() -> None:
    """The mean over all examples, and its root; padding has no part in them."""
    sums = jax.jit(task().evaluate)(params(), batch([1, 1, 1, 1, 1, 0, 0, 0]))
    expected = errors()[:5].mean()
    summary = task().summarize({key: float(value) for key, value in sums.items()})
    assert summary == pytest.approx({"loss": expected, "rmse": expected**0.5}, rel=1e-5)


def test_predictions_are_values() -> None:
    """float32[B, values], and their score is the evaluation, so that averages can be scored as well."""
    given = batch(np.arange(8))
    predictions = task().predict(params(), given)
    assert (predictions.shape, predictions.dtype) == ((8, 2), np.float32)
    scored, evaluated = task().score(predictions, given), task().evaluate(params(), given)
    assert {k: float(v) for k, v in scored.items()} == pytest.approx({k: float(v) for k, v in evaluated.items()})
    perfect = task().score(given["y"], given)
    assert (float(perfect["loss"]), float(perfect["count"])) == (0, 28)


def test_l2_is_added_to_the_loss_once() -> None:
    """Ridge regression: half of it times the squared weights, without biases; evaluation is without it."""
    key = jax.random.key(0)
    difference = task(l2=0.5).loss(params(), batch(), key)[0] - task().loss(params(), batch(), key)[0]
    assert float(difference) == pytest.approx(0.25 * (params()["head"]["kernel"] ** 2).sum(), rel=1e-4)
    given = batch(np.ones(8))
    assert float(task(l2=0.5).evaluate(params(), given)["loss"]) == float(task().evaluate(params(), given)["loss"])


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        (np.zeros(4, np.int32), 3, r"its targets are int32\[\], but task regression learns float32\[3\]"),
        (np.zeros((4, 1), np.int32), None, r"its targets are int32\[1\], but"),
        (np.zeros((4, 2, 2), np.float32), None, r"its targets are float32\[2, 2\], but"),
    ],
)
def test_targets_that_are_no_values(y: Array, classes: int | None, message: str) -> None:
    """Labels are for a classification."""
    pair = np.zeros((4, 3), np.float32), y
    with pytest.raises(UserError, match=rf"^data sine: {message}.*take task: classification"):
        make_task(job("regression", "sine", model="linear"), array_dataset(pair, pair, classes))


class Flat(nn.Module):
    """A user's model that forgets the axis of the outputs."""

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        return nn.Dense(1)(x)[:, 0]


def flat(options: Any, outputs: int, dtype: Any) -> Flat:
    return Flat()


def test_a_model_whose_outputs_are_not_one_for_each_value() -> None:
    """[8] minus [8, 2] is a matrix or an error of JAX, neither of which says what is wrong."""
    of = task(name=f"{__name__}:flat")
    with pytest.raises(
        UserError, match=r"gives float32\[8\] for 8 examples, but task regression needs \[8, 2\]; reshape"
    ):
        jax.eval_shape(of.loss, jax.eval_shape(of.init, jax.random.key(0)), batch(), jax.random.key(0))
