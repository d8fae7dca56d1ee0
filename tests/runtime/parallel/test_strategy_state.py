"""The state of a strategy: how it starts, is divided, saved, placed again and averaged."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from podrun.runtime.data.pipeline import evaluation_batches
from podrun.runtime.parallel.layout import Partition

from ...tiers import mostly_long
from ..strategies import (
    FEATURES,
    SECTIONS,
    WIDTH,
    assert_close,
    assert_identical,
    copies,
    dataset,
    every_strategy,
    place,
    strategy,
    train,
)
from .reference import batches, initial


@every_strategy
def test_initial_state_does_not_depend_on_the_devices(name: str) -> None:
    """It is bit for bit that of a single device."""
    one = strategy(name)
    assert_identical(copies(one.savable(one.init())), initial())


@every_strategy
def test_a_step_reuses_the_buffers_of_the_state(name: str) -> None:
    """The old state is gone: two copies at a time would not fit."""
    one = strategy(name)
    (batch,) = batches(1)
    old = place(one, initial())
    new, metrics = one.step(old, one.shard(batch))
    jax.block_until_ready(metrics)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(new))


@pytest.mark.parametrize("name", [name for name in SECTIONS if "fsdp" not in name])
def test_a_state_that_is_saved_whole_outlives_its_buffers(name: str) -> None:
    """A checkpoint is written while training goes on: steps that reuse the buffers do not change it."""
    one = strategy(name)
    assert not one.saves_in_parts
    state = place(one, initial())
    named = one.savable(state)
    assert {type(leaf) for leaf in jax.tree.leaves(named)} == {np.ndarray}
    state, _ = train(one, state, batches(3))
    assert_identical(named, initial())
    assert (named["params"]["dense_0"]["kernel"] != np.asarray(state.params["dense_0"]["kernel"])).any()


@every_strategy
def test_every_strategy_goes_on_from_the_state_of_any(name: str) -> None:
    """Each places, bit for bit, what another has saved, with optimizer and step."""
    one = strategy(name)
    state, _ = train(one, place(one, initial()), batches(2))
    named = copies(one.savable(state))
    assert int(named["step"]) == 2
    for other in SECTIONS:
        placed = place(strategy(other), named)
        assert_identical(copies(strategy(other).savable(placed)), named)
        abstract = strategy(other).abstract_state()
        for leaf, like in zip(jax.tree.leaves(placed), jax.tree.leaves(abstract), strict=True):
            assert leaf.sharding.is_equivalent_to(like.sharding, leaf.ndim)
    again = place(one, named)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    third = one.shard(batches(3)[2])
    state, expected = one.step(state, third)
    again, found = one.step(again, third)
    assert_identical(found, expected)
    assert_identical(copies(one.savable(again)), copies(one.savable(state)))


@every_strategy
def test_the_result_is_one_copy_on_the_host(name: str) -> None:
    """Whole arrays, of whatever layout the state is."""
    one = strategy(name)
    result = one.result(place(one, initial()))
    assert {type(leaf) for leaf in jax.tree.leaves(result)} == {np.ndarray}
    assert_identical(result, initial()["params"])


@pytest.mark.parametrize(("name", "parts"), [("jit", 1), ("jit fsdp 2", 2), ("explicit fsdp 4", 4)])
def test_how_much_of_the_state_a_device_holds(name: str, parts: int) -> None:
    """Parameters and both moments: with `fsdp` a part of them, but for what is too small to divide; also after a step."""
    one = strategy(name)
    state, _ = train(one, place(one, initial()), batches(1))
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert whole > 3 * 4 * FEATURES * WIDTH
    for device in jax.devices():
        shards = [s for leaf in jax.tree.leaves(state) for s in leaf.addressable_shards if s.device == device]
        held = sum(shard.data.nbytes for shard in shards)
        assert whole / parts <= held <= 1.05 * whole / parts


@pytest.mark.parametrize(
    ("shape", "parts", "expected"),
    [
        ((640, 160), 4, ("fsdp",)),
        ((160, 640), 4, (None, "fsdp")),
        ((641, 160), 4, (None, "fsdp")),
        ((641, 163), 4, ()),
        ((128, 128), 4, ()),
        ((640, 160), 1, ()),
        ((2, 10, 1024), 2, (None, None, "fsdp")),
        ((), 2, ()),
    ],
)
def test_how_an_array_is_divided(shape: tuple[int, ...], parts: int, expected: tuple[str | None, ...]) -> None:
    """Along its longest dimension that divides; small ones, and those of which none divides, stay whole."""
    assert tuple(Partition(parts).of("kernel", shape)) == expected


@pytest.mark.parametrize(
    "name",
    mostly_long(SECTIONS, lambda _, name: name in ("pmap", "explicit fsdp 4"), lambda _, name: name == "jit fsdp 2"),
)
def test_the_moving_average_of_the_parameters(name: str) -> None:
    """After n steps it is d^n p_0 + (1 - d) sum d^(n - i) p_i, and evaluation takes it."""
    one = strategy(name, accumulate=2, ema=0.9)
    state = place(one, initial(ema=True))
    history = [initial()["params"]]
    for batch in batches(3):
        state, _ = one.step(state, one.shard(batch))
        history.append(copies(one.savable(state))["params"])
    weights = [0.9**3, *(0.1 * 0.9 ** (3 - i) for i in (1, 2, 3))]
    expected = jax.tree.map(lambda *p: sum(w * x.astype(np.float64) for w, x in zip(weights, p, strict=True)), *history)
    assert_close(state.ema, expected)
    assert_identical(one.result(state), copies(one.savable(state))["ema"])
    (batch,) = evaluation_batches(dataset().validation, 8, 0, 1, 1)
    averaged = one.evaluate(state, one.shard(batch))
    assert_identical(averaged, one.evaluate(state.replace(params=state.ema, ema=state.ema), one.shard(batch)))
    assert float(averaged["loss"]) != float(one.evaluate(state.replace(ema=state.params), one.shard(batch))["loss"])
