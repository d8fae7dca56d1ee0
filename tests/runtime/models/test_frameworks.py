"""Models of all frameworks under one contract: the same losses, whatever they are written in and however they are divided."""

from __future__ import annotations

import functools
from typing import Any

import jax
import pytest

from podrun.runtime.config import Config
from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches, evaluation_batches
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.state import Batch, StateDict

from ...tiers import mostly_long
from ..parallel.reference import SAME_DEVICES
from ..strategies import (
    FEATURES,
    SECTIONS,
    assert_close,
    copies,
    dataset,
    job,
    make,
    place,
    train,
)

pytest.importorskip("equinox", reason="the extra `test` has it")

FRAMEWORKS = ["linen", "nnx", "equinox", "plain"]
QUICK = "jit fsdp 2"
"""The strategy of which the tests are not long."""


def every(names: list[str], frameworks: list[str] = FRAMEWORKS) -> Any:
    """Return the parametrization: one framework by all strategies, one strategy by all frameworks."""
    pairs = [(framework, name) for framework in FRAMEWORKS for name in names if name == QUICK or framework == "nnx"]
    cases = mostly_long(
        pairs,
        lambda _, case: case[0] in frameworks and case[1] == QUICK,
        lambda _, case: case[1] in (QUICK, "explicit fsdp 4", "shard_map"),
    )
    return pytest.mark.parametrize(("framework", "name"), cases)


every_framework = pytest.mark.parametrize("framework", FRAMEWORKS)


@functools.cache
def batches() -> list[Batch]:
    """Return batches with so many examples for each device that statistics over them are well conditioned."""
    order = TrainBatches(dataset().train, ShuffledOrder(dataset().train.size, 0), 32, 0, 1)
    return [order.at(32 * i) for i in range(3)]


def config(framework: str, name: str, norm: bool, dropout: float, axis: str | None = None, **keys: Any) -> Config:
    options = {"features": FEATURES, "norm": norm, "dropout": dropout, "axis": axis}
    return job(name, model={"name": f"{__package__}.mlps:{framework}_mlp", "options": options}, batch_size=32, **keys)


@functools.cache
def strategy(framework: str, name: str, norm: bool = False, dropout: float = 0.0, **keys: Any) -> Strategy:
    return make(config(framework, name, norm, dropout, **keys), dataset())


@functools.cache
def weights() -> Any:
    """The initial weights of flax's module."""
    params = copies(strategy("linen", "single").savable(strategy("linen", "single").init()))["params"]
    assert params.keys() == {"dense_0", "head"}
    return params


@functools.cache
def initial(framework: str, norm: bool = False) -> StateDict:
    one = strategy(framework, "single", norm)
    named = copies(one.savable(one.init()))
    assert (named["params"].keys() - {"norm"}) == weights().keys()
    return {**named, "params": {**named["params"], **weights()}}


@functools.cache
def losses(framework: str, name: str, norm: bool = False, dropout: float = 0.0, **keys: Any) -> list[float]:
    one = strategy(framework, name, norm, dropout, **keys)
    state, history = train(one, place(one, initial(framework, norm)), batches())
    trained[framework, name, norm, dropout, keys.get("axis")] = copies(one.savable(state))
    return [metrics["loss"] for metrics in history]


trained: dict[tuple[Any, ...], StateDict] = {}


def evaluation(framework: str, name: str, named: StateDict, norm: bool, dropout: float) -> float:
    one = strategy(framework, name, norm, dropout)
    (batch,) = evaluation_batches(dataset().validation, 32, 0, 1, 1)
    sums = jax.device_get(one.evaluate(place(one, named), one.shard(batch)))
    return float(one.summarize(sums)["loss"])


# --- the same losses ------------------------------------------------------------------------------------------------


@every(list(SECTIONS))
def test_losses_are_the_same(framework: str, name: str) -> None:
    """Without dropout and batch statistics on any number of devices."""
    assert losses(framework, name) == pytest.approx(losses("linen", "single"), rel=1e-6)
    assert "model_state" not in trained[framework, name, False, 0.0, None]


@every(SAME_DEVICES, ["nnx"])
def test_losses_with_dropout_and_batch_statistics(framework: str, name: str) -> None:
    """On the same devices. flax's module and plain JAX draw the same masks, the others their own."""
    same = "linen" if framework == "plain" else framework
    assert losses(framework, name, True, 0.5) == pytest.approx(losses(same, "pmap", True, 0.5), rel=1e-6)
    mine, other = trained[framework, name, True, 0.5, None], trained[same, "pmap", True, 0.5, None]
    assert_close(mine, other)
    assert evaluation(framework, name, mine, True, 0.5) == pytest.approx(
        evaluation(same, "pmap", other, True, 0.5), rel=1e-5
    )


@pytest.mark.parametrize("framework", mostly_long(FRAMEWORKS, lambda _, framework: framework in ("nnx", "plain")))
def test_losses_with_batch_statistics_alone(framework: str) -> None:
    """No framework has another idea of batch norm; dropout does change the losses."""
    alone = losses(framework, "jit fsdp 2", True)
    assert alone == pytest.approx(losses("plain", "shard_map", True), rel=1e-6)
    assert losses(framework, "pmap", True, 0.5) != pytest.approx(alone, rel=1e-3)


def test_one_device_with_as_many_parts() -> None:
    """Its share is the whole batch; in four parts its statistics are those of four devices."""
    assert losses("linen", "single", True, accumulate=4) == pytest.approx(losses("plain", "pmap", True), rel=1e-6)


AXES = [*(("linen", name) for name in SECTIONS), ("nnx", "explicit fsdp 4"), ("plain", QUICK)]


@pytest.mark.parametrize(
    ("framework", "name"),
    mostly_long(
        AXES,
        lambda _, case: case in [("nnx", "explicit fsdp 4"), ("linen", "shard_map")],
        lambda _, case: case[1] in (QUICK, "single"),
    ),
)
def test_statistics_of_the_whole_batch(framework: str, name: str) -> None:
    """With `axis_name="batch"`, as in flax's ResNet: those of one device that has the whole batch."""
    alone = losses("plain", "single", True)
    assert losses(framework, name, True, axis="batch") == pytest.approx(alone, rel=1e-6, abs=1e-7)
    losses(framework, "single", True)
    assert_close(trained[framework, name, True, 0.0, "batch"], trained[framework, "single", True, 0.0, None])
    assert alone != pytest.approx(losses("plain", "pmap", True), rel=1e-3)


def test_a_named_axis_in_parts() -> None:
    """The statistics of a part are those of all devices' parts."""
    one, two = (losses("linen", name, True, axis="batch", accumulate=2) for name in ("pmap", "jit fsdp 2"))
    assert one == pytest.approx(two, rel=1e-6, abs=1e-7)


@pytest.mark.long
def test_a_named_axis_in_an_ensemble() -> None:
    """A member has the whole batch."""
    found = []
    for axis in ("batch", None):
        one = strategy("linen", "ensemble", True, axis=axis)
        state, history = train(one, one.init(), batches())
        (batch,) = evaluation_batches(dataset().validation, 32, 0, 1, 1)
        sums = jax.device_get(one.evaluate(state, one.shard(batch)))
        found.append([*(metrics["loss"] for metrics in history), float(one.summarize(sums)["loss"])])
    assert found[0] == pytest.approx(found[1], rel=1e-6)
