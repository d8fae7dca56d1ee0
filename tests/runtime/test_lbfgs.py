"""L-BFGS: logistic regression, under all strategies and against another implementation."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import jaxopt
import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.pipeline import full_batch

from ..tiers import mostly_long
from .strategies import SECTIONS, compilations, make

L2 = 1e-3
MEMORY = 110  # so many, that the history is divided where the state is


def job(name: str, line_search: str | None, memory: int) -> Config:
    classes = {"name": "make_classification", "samples": 2001, "features": 32, "classes": 5, "informative": 10}
    search = {"line_search": line_search, "step_size": 0.5 if line_search is None else None}
    optimizer = {"name": "lbfgs", "memory": memory, **search}
    model = {"name": "linear", "l2": L2}
    keys = {"task": "logistic_regression", "data": classes, "model": model, "optimizer": optimizer, "steps": 60}
    return Config.model_validate({**keys, "parallel": SECTIONS[name]})


@functools.cache
def dataset() -> Dataset:
    """Its size does not divide by the devices."""
    return load_dataset(job("single", "zoom", 10))


@functools.cache
def losses(name: str, line_search: str | None, memory: int = MEMORY, steps: int = 25) -> list[dict[str, float]]:
    """Metrics of each step. Only the first step may compile."""
    one = make(job(name, line_search, memory), dataset())
    state, batch, history = one.init(), one.shard(full_batch(dataset().train, one.shares, *one.data_shard)), []
    before = 0
    for step in range(steps):
        state, metrics = one.step(state, batch)
        history.append(metrics.read())
        assert step == 0 or compilations() == before, f"step {step + 1} was compiled anew"
        before = compilations()
    return history


@functools.cache
def by_jaxopt(line_search: str, iterations: int = 60) -> float:
    """The loss that jaxopt's L-BFGS comes to from the same start with the same memory."""
    size = dataset().train.size
    examples = dataset().train.gather(np.arange(size), np.zeros(size, np.int64))
    x, y = jnp.asarray(examples["x"]), jnp.asarray(examples["y"])

    def loss(params: Any) -> jax.Array:
        log_p = jax.nn.log_softmax(x @ params["kernel"] + params["bias"])
        return -log_p[jnp.arange(size), y].mean() + L2 / 2 * (params["kernel"] ** 2).sum()

    solver = jaxopt.LBFGS(loss, maxiter=iterations, history_size=10, tol=0.0, linesearch=line_search)
    start = {"kernel": jnp.zeros((32, 5)), "bias": jnp.zeros(5)}
    return float(loss(solver.run(start).params))


@pytest.mark.parametrize(
    ("name", "line_search"),
    mostly_long(
        [
            (name, line_search)
            for name in ("pmap", "jit", "jit fsdp 2", "explicit", "shard_map")
            for line_search in ("zoom", "backtracking")
        ],
        lambda _, case: case in (("jit", "zoom"), ("shard_map", "zoom")),
        lambda _, case: case in (("jit fsdp 2", "zoom"), ("pmap", "backtracking")),
    ),
)
def test_lbfgs_is_the_same_under_every_strategy(name: str, line_search: str) -> None:
    """25 losses on a set that has to be padded are those of a single device, and no step is compiled anew."""
    found, expected = losses(name, line_search), losses("single", line_search)
    assert [m["loss"] for m in found] == pytest.approx([m["loss"] for m in expected], rel=1e-4)
    assert found[0].keys() == {"loss", "grad_norm", "learning_rate"}
    assert found[-1]["loss"] < 0.8 * found[0]["loss"]
    assert found[0]["loss"] == pytest.approx(np.log(5), rel=1e-5)  # weights begin at zero


def test_a_fixed_step() -> None:
    """The length of every step is that of the config, and it learns."""
    history = losses("single", None, memory=10)
    assert {m["learning_rate"] for m in history} == {0.5}
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    assert history[0].keys() == {"loss", "accuracy", "grad_norm", "learning_rate"}


@pytest.mark.long
@pytest.mark.parametrize("line_search", ["zoom", "backtracking"])
def test_lbfgs_comes_as_far_as_jaxopt(line_search: str) -> None:
    """After 60 iterations, the loss is within 1 % of another implementation's, or below; and the gradient has vanished."""
    history = losses("single", line_search, memory=10, steps=61)
    assert history[-1]["loss"] <= 1.01 * by_jaxopt(line_search)
    assert history[-1]["grad_norm"] < 1e-2 * history[0]["grad_norm"]
    assert all(m["learning_rate"] > 0 for m in history)
