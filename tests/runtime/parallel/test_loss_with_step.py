"""A loss that takes the step gets the same number under every strategy."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.data.pipeline import batch_shapes
from podrun.runtime.measure.flops import step_flops
from podrun.runtime.parallel import make_strategy
from podrun.runtime.state import Batch, Params
from podrun.runtime.tasks import make_task
from podrun.runtime.tasks.base import Scalars
from podrun.runtime.tasks.classification import Classification

from ..strategies import dataset, every_strategy_in_parts, job, strategy, train
from .reference import batches


class Scheduled(Classification):
    """A loss whose weight grows with the steps."""

    def loss(
        self, params: Params, batch: Batch, key: jax.Array, step: jax.Array | int = -100
    ) -> tuple[jax.Array, Scalars]:
        loss, metrics = super().loss(params, batch, key)
        weight = jnp.minimum(1.0, (step + 1) / 4)
        return weight * loss, {**metrics, "weight": weight}


@every_strategy_in_parts
def test_every_strategy_gives_it(name: str, accumulate: int) -> None:
    """From 0 on, also in microbatches; the losses are the same."""
    config = job(name, accumulate=accumulate)
    one = make_strategy(config, Scheduled(config, dataset()), optax.sgd(0.1), optax.constant_schedule(0.1))
    _, history = train(one, one.init(), batches(3))
    assert [each["weight"] for each in history] == [0.25, 0.5, 0.75]
    plain = strategy("single")
    _, unweighted = train(plain, plain.init(), batches(1))
    assert history[0]["loss"] == pytest.approx(unweighted[0]["loss"] / 4, rel=1e-4)


def test_members_of_an_ensemble_get_it() -> None:
    config = job("ensemble")
    one = make_strategy(config, Scheduled(config, dataset()), optax.sgd(0.1), optax.constant_schedule(0.1))
    _, history = train(one, one.init(), batches(2))
    assert [each["weight"] for each in history] == [0.25, 0.5]


def test_flops_are_those_of_the_loss() -> None:
    config = job("single")
    shapes = batch_shapes(dataset().train, 8)
    each = []
    for kind in (Classification, Scheduled):
        task = kind(config, dataset())
        params = jax.eval_shape(task.init, jax.random.key(0))
        each.append(step_flops(task, params, shapes).work)
    assert each[0] == each[1] > 0


def test_a_loss_with_other_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "their_loss.py").write_text(
        "from podrun.runtime.tasks.classification import Classification\n"
        "class Task(Classification):\n    def loss(self, params, batch, key, epoch): pass\n"
    )
    config = job("single", task="their_loss:Task")
    with pytest.raises(
        UserError, match=r"its `loss` takes \(params, batch, key, epoch\), but is called with \(params, b"
    ):
        make_task(config, dataset())
