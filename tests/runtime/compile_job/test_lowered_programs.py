"""The programs that are compiled before a run are those that the run asks for."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.data.pipeline import (
    ShuffledOrder,
    TrainBatches,
    evaluation_batches,
    evaluation_shapes,
    full_batch,
    step_shapes,
)
from podrun.runtime.devices import Devices
from podrun.runtime.optim import make_optimizer
from podrun.runtime.parallel import make_strategy
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.state import Batch
from podrun.runtime.tasks import make_task

from ...tiers import mostly_long
from ..strategies import SECTIONS, dataset, job

OF_PODS = [name for name in SECTIONS if name != "single"]


def shapes(batch: Batch) -> dict[str, Any]:
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch.items()}


def make(config: Config, pod: Devices | None = None) -> Strategy:
    task = make_task(config, dataset())
    return make_strategy(config, task, *make_optimizer(config, config.total_steps(dataset().train.size)), pod)


def asked_for(one: Strategy, config: Config) -> dict[str, str]:
    """Return the text of the programs that a step and an evaluation of a run compile."""
    data, state = dataset(), one.init()
    if config.batch_size == "all":
        batch = full_batch(data.train, one.shares * config.accumulate, *one.data_shard)
        size = data.validation.size
    else:
        size = config.batch_size
        parts = one.shares * config.accumulate
        batch = TrainBatches(data.train, ShuffledOrder(data.train.size, 0), size, *one.data_shard, parts).at(0)
    evaluation = next(evaluation_batches(data.validation, size, *one.data_shard, 1, one.shares))
    return {
        "step": one._step.lower(state, one.shard(batch)).as_text(),
        "evaluation": one._evaluate.lower(state.best, one.shard(evaluation)).as_text(),
    }


def before(one: Strategy, config: Config) -> dict[str, str]:
    """Return the text of those that are compiled before."""
    parts = one.shares
    batch = shapes(step_shapes(dataset().train, config.batch_size, parts * config.accumulate))
    evaluation = shapes(evaluation_shapes(dataset().validation, config.batch_size, parts))
    programs = one.lowered_programs(batch, evaluation)
    return {name: lowered.as_text() for name, lowered in programs.items()}


PARTS: dict[str, Any] = {"ema": 0.9, "accumulate": 2}
ALL: dict[str, Any] = {"batch_size": "all"}


# Parts and whole data sets are shapes of batches, which a mesh and a program for each device take in two ways.
@pytest.mark.parametrize(
    ("name", "keys"),
    [*((name, {}) for name in OF_PODS), *((name, keys) for keys in (PARTS, ALL) for name in ("pmap", "jit fsdp 2"))],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_they_are_those_of_the_run(name: str, keys: dict[str, Any]) -> None:
    """Lowered for real devices, and for devices that are only described. Neither text names a file of the source."""
    config = job(name, **keys)
    expected = asked_for(make(config), config)
    assert before(make(config), config) == expected
    described = Devices.of_topology(jax.devices())
    assert before(make(config, described), config) == expected
    assert ".py" not in "".join(expected.values())


@pytest.mark.parametrize("name", mostly_long(OF_PODS, lambda _, name: name in ("pmap", "jit fsdp 2")))
def test_the_initial_state_of_other_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On TPUs and GPUs it is a program of the whole pod. It computes what CPUs compute."""
    config = job(name)
    expected = make(config).init()
    monkeypatch.setattr(Devices, "is_cpu", False)
    one = make(config)
    here, described = (before(s, config) for s in (one, make(config, Devices.of_topology(jax.devices()))))
    assert here["initialization"] == described["initialization"]
    state = one.init()
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
