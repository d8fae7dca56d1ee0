"""The field's textbook problems, as their own code poses them: the same numbers come out, under every strategy."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from podrun.runtime.config import Config
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches, full_batch

from ..tiers import mostly_long
from .array_jobs import everything
from .strategies import SECTIONS, copies, make, train

# --- logistic regression without a bias: jaxopt's notebook on L-BFGS --------------------------------------------------

CLASSES, FEATURES = 5, 32


def notebook_job(name: str = "single", **model: Any) -> Config:
    data = {"name": "make_classification", "samples": 2001, "features": FEATURES, "classes": CLASSES, "informative": 10}
    keys = {"task": "logistic_regression", "data": data, "model": {"name": "linear", **model}, "steps": 200}
    return Config.model_validate({**keys, "parallel": name})


@functools.cache
def notebook_data() -> Dataset:
    return load_dataset(notebook_job())


@functools.cache
def by_scipy(bias: bool) -> float:
    """The lowest loss, in float64."""
    examples = everything(notebook_data().train)
    x = examples["x"].astype(np.float64)
    x = np.hstack([x, np.ones((len(x), 1))]) if bias else x
    hot = np.eye(CLASSES)[examples["y"]]

    def loss_and_gradient(flat: Any) -> tuple[float, Any]:
        logits = x @ flat.reshape(x.shape[1], CLASSES)
        logits -= logits.max(1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return -(log_p * hot).sum(1).mean(), (x.T @ (np.exp(log_p) - hot) / len(x)).ravel()

    start = np.zeros(x.shape[1] * CLASSES)
    options = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-9}
    return float(minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options).fun)


WITH_LBFGS = [name for name in SECTIONS if name != "explicit fsdp 4"]


@pytest.mark.parametrize(
    "name", mostly_long(WITH_LBFGS, lambda _, name: name in ("pmap", "jit"), lambda _, name: name == "jit fsdp 2")
)
def test_logistic_regression_without_a_bias(name: str) -> None:
    """Its loss is scipy's of the same problem, which is not that of the problem with a bias."""
    one = make(notebook_job(SECTIONS[name], bias=False), notebook_data())
    batch = one.shard(full_batch(notebook_data().train, one.shares, *one.data_shard))
    state = one.init()
    for _ in range(120):
        state, metrics = one.step(state, batch)
        loss = one.average(metrics).read()["loss"]
    assert loss == pytest.approx(by_scipy(bias=False), rel=1e-6)
    assert by_scipy(bias=True) < (1 - 1e-4) * by_scipy(bias=False)
    assert jax.tree.map(lambda x: x.shape, one.abstract_state().params) == {"head": {"kernel": (FEATURES, CLASSES)}}


# --- regression of a curve by an MLP, with the start that a course gives it -------------------------------------------

SCALES = {"weight_std": 0.7, "bias_std": 0.4}


def curve_job(name: Any = "single") -> Config:
    model = {"name": "mlp", "layers": 2, "width": 20, **SCALES}
    data = {"name": "sine", "samples": 320, "range": [0, 2], "noise": 0, "validation": 0.2}
    optimizer = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.0}
    keys = {"task": "regression", "steps": 60, "batch_size": 32, "schedule": {"name": "constant"}}
    return Config.model_validate({**keys, "model": model, "data": data, "optimizer": optimizer, "parallel": name})


@functools.cache
def curve_data() -> Dataset:
    return load_dataset(curve_job())


def test_the_curve_as_the_course_draws_it() -> None:
    """x is uniform over the range, and without noise y is the curve itself."""
    examples = everything(curve_data().train)
    x, y = examples["x"].astype(np.float64), examples["y"]
    assert 0 <= x.min() < 0.05
    assert 1.95 < x.max() < 2
    np.testing.assert_allclose(y, np.sin(6 * x) - x**2 / 2, atol=1e-5)


def test_initial_scales() -> None:
    """Weights and biases of all layers have the standard deviations that the job gives."""
    job = curve_job().model_dump()
    wide = Config.model_validate({**job, "model": {**job["model"], "width": 400}})
    params = make(wide, curve_data()).init().params
    for name in ("dense_0", "dense_1", "head"):
        if params[name]["kernel"].size > 300:
            assert float(params[name]["kernel"].std()) == pytest.approx(0.7, rel=0.15)
    assert float(params["dense_0"]["bias"].std()) == pytest.approx(0.4, rel=0.15)


def by_hand(params: Any, batches: list[Any]) -> list[float]:
    """Gradient descent as a course writes it: its own network, loss and update."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        for layer in ("dense_0", "dense_1"):
            x = jnp.tanh(jnp.dot(x, params[layer]["kernel"]) + params[layer]["bias"])
        return jnp.mean((jnp.dot(x, params["head"]["kernel"]) + params["head"]["bias"] - y) ** 2)

    descend = jax.jit(jax.value_and_grad(loss))
    losses = []
    for batch in batches:
        value, grads = descend(params, batch["x"], batch["y"])
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        losses.append(float(value))
    return losses


@pytest.mark.parametrize(
    "name", mostly_long(SECTIONS, lambda *_: False, lambda _, name: name in ("single", "shard_map"))
)
def test_regression_is_that_of_a_loop_by_hand(name: str) -> None:
    """From the same initial weights, every loss is within 1e-5 of plain JAX code's."""
    order = TrainBatches(curve_data().train, ShuffledOrder(curve_data().train.size, 0), 32, 0, 1)
    batches = [order.at(32 * i) for i in range(60)]
    one = make(curve_job(SECTIONS[name]), curve_data())
    state = one.init()
    start = copies(one.savable(state))["params"]
    _, history = train(one, state, batches)
    assert [m["loss"] for m in history] == pytest.approx(by_hand(start, batches), rel=1e-5)
