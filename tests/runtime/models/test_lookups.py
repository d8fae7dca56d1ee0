"""Models that look rows of tables up train under every strategy, `explicit` too: layouts in types stop at the model."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.data.base import Dataset
from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches, evaluation_batches
from podrun.runtime.data.windows import Source, TrainWindows, ValidationWindows
from podrun.runtime.parallel.base import Strategy

from ...tiers import mostly_long
from ..strategies import SECTIONS, job, make, train

pytest.importorskip("equinox", reason="the extra `test` has it")
from . import lookups

FRAMEWORKS = ["linen", "nnx", "equinox", "plain"]


@functools.cache
def text() -> Dataset:
    tokens = np.random.default_rng(0).integers(100, size=400).astype(np.uint16)
    source = Source("tokens", 1100)
    return Dataset(TrainWindows(tokens, 8, 0, source), ValidationWindows(tokens, 8, source), b"", vocabulary=100)


def strategy(framework: str, name: str, **keys: Any) -> Strategy:
    model = {"name": f"{lookups.__name__}:{framework}_model", "options": {"context": 8}}
    keys = {"optimizer": {"name": "sgd", "learning_rate": 0.5}, **keys}
    return make(job(name, task="language_model", model=model, data="python_source", **keys), text())


@functools.cache
def losses(framework: str, name: str, **keys: Any) -> list[float]:
    """Return the losses of three steps, and that of an evaluation after them."""
    one = strategy(framework, name, **keys)
    order = TrainBatches(text().train, ShuffledOrder(text().train.size, 0), 8, 0, 1)
    state, history = train(one, one.init(), [order.at(8 * i) for i in range(3)])
    batch = next(iter(evaluation_batches(text().validation, 8, 0, 1, 1)))
    evaluated = one.summarize(jax.device_get(one.evaluate(state, one.shard(batch))))
    return [*(metrics["loss"] for metrics in history), float(evaluated["loss"])]


WAYS = [name for name in SECTIONS if name != "single"]
CASES = [(framework, name) for framework in FRAMEWORKS for name in WAYS if name == "explicit" or framework == "plain"]


@pytest.mark.parametrize(
    ("framework", "name"),
    mostly_long(
        CASES,
        lambda _, case: case in (("nnx", "explicit"), ("plain", "explicit")),
        lambda _, case: case[1] in ("explicit", "shard_map", "explicit fsdp 4"),
    ),
)
def test_losses_are_those_of_a_single_device(framework: str, name: str) -> None:
    assert losses(framework, name) == pytest.approx(losses(framework, "single"), rel=1e-5)


@pytest.mark.parametrize("framework", mostly_long(FRAMEWORKS, lambda *_: False, lambda _, name: name == "linen"))
def test_losses_with_a_batch_in_two_parts(framework: str) -> None:
    assert losses(framework, "explicit fsdp 4", accumulate=2) == pytest.approx(losses(framework, "single"), rel=1e-5)


@pytest.mark.parametrize("name", [*SECTIONS, "ensemble"])
def test_init_is_called_once(name: str) -> None:
    """By the strategy, for the shapes, the layout and the state together; a model may be slow to make."""
    lookups.PlainModel.inits = 0
    one = strategy("plain", name)
    one.abstract_state()
    state = one.init()
    one.template()
    assert lookups.PlainModel.inits == 1
    assert jax.tree.structure(state) == jax.tree.structure(one.abstract_state())
