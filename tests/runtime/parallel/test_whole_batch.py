"""A task whose loss compares examples with each other gets the whole batch, however many devices there are."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.parallel import make_strategy
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.state import Batch, Params, StateDict, to_dict
from podrun.runtime.tasks.base import Scalars, Task

from ..strategies import FEATURES, assert_close, copies, dataset, every_strategy, job, place, train
from .reference import batches


class Contrastive(Task):
    """Each example has to find its own noisy copy among those of all examples (InfoNCE, van den Oord et al. 2018)."""

    whole_batch = True

    def init(self, key: jax.Array) -> Params:
        return {"w": jax.random.normal(key, (FEATURES, 16)) / FEATURES**0.5, "scale": jnp.ones(())}

    def _losses(self, params: Params, x: jax.Array, noise: jax.Array | float) -> jax.Array:
        one, other = x @ params["w"], (x + noise) @ params["w"]
        similar = (
            params["scale"] * one @ other.T / jnp.linalg.norm(one, axis=1)[:, None] / jnp.linalg.norm(other, axis=1)
        )
        return -jnp.diag(jax.nn.log_softmax(similar))

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        losses = self._losses(params, batch["x"], jax.random.normal(key, batch["x"].shape))
        return losses.mean(), {"largest": losses.max(), "examples": jnp.float32(len(losses))}

    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        losses = self._losses(params, batch["x"], 0.0)
        return {"loss": losses.sum(), "count": jnp.float32(len(losses))}

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        return {"loss": sums["loss"] / sums["count"]}


class Divided(Contrastive):
    whole_batch = False


def strategy(name: str, kind: type[Task] = Contrastive, accumulate: int = 1) -> Strategy:
    config = job(name, accumulate=accumulate)
    return make_strategy(config, kind(config, dataset()), optax.sgd(1.0), optax.constant_schedule(1.0))


@functools.cache
def start() -> StateDict:
    return copies(to_dict(strategy("single").init()))


@functools.cache
def reference() -> tuple[StateDict, list[dict[str, float]]]:
    one = strategy("single")
    state, history = train(one, place(one, start()), batches(3))
    return copies(one.savable(state)), history


@every_strategy
def test_the_loss_is_that_of_one_device(name: str) -> None:
    """With its gradients, metrics, random numbers and evaluation."""
    one = strategy(name)
    state, history = train(one, place(one, start()), batches(3))
    named, expected = reference()
    for found, values in zip(history, expected, strict=True):
        assert found == pytest.approx(values, rel=1e-5)
    assert history[0]["examples"] == 8
    assert_close(copies(one.savable(state)), named)
    batch = {**batches(1)[0], "weights": np.ones(8, np.float32)}
    sums = [
        {key: float(value) for key, value in s.evaluate(place(s, named), s.shard(batch)).items()}
        for s in (one, strategy("single"))
    ]
    assert sums[0] == pytest.approx(sums[1], rel=1e-5)
    assert sums[0]["count"] == 8


def test_a_task_that_does_not_ask_gets_shares() -> None:
    """Its loss depends on how many there are."""
    one = strategy("pmap", Divided)
    _, history = train(one, place(one, start()), batches(1))
    assert history[0]["examples"] == 2
    assert history[0]["loss"] < 0.7 * reference()[1][0]["loss"]


def test_a_batch_in_parts_is_not_whole() -> None:
    with pytest.raises(UserError, match="whole_batch"):
        strategy("single", accumulate=2)
