"""The order of a mixture: a function of the position, with shares by weight, that goes on exactly when a job is resumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from podrun.runtime.config.data import MixtureData
from podrun.runtime.data.mixture import (
    MixtureOrder,
    Stage,
    check_saved,
    fingerprint_of,
    history,
    missing_sources,
)
from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches

from .numbers import SIZES, WEIGHTS, Numbers

STAGES = [Stage(0, WEIGHTS), Stage(5000, {"a": 0, "b": 1, "c": 1, "d": 1})]


def sources_of(indices: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum([*SIZES.values()]), indices, "right")


def test_shares() -> None:
    """From the beginning, and from a change on, each source has its weight's share of any number of blocks."""
    order = MixtureOrder(SIZES, STAGES, seed=3)
    indices, _ = order.run(0, 20_000)
    before, after = (np.bincount(sources_of(part), minlength=4) for part in (indices[:5000], indices[5000:]))
    np.testing.assert_allclose(before / 5000, [*WEIGHTS.values()], atol=0.01)
    np.testing.assert_allclose(after / 15_000, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.001)
    assert after[0] == 0
    counted = np.bincount(sources_of(order.run(0, 4096)[0]), minlength=4)
    assert (np.abs(counted - 4096 * np.array([*WEIGHTS.values()])) < len(SIZES)).all()


def test_each_source_in_its_own_order() -> None:
    """The mixture leaves the order within a source alone: no example is lost or doubled in an epoch of it."""
    order = MixtureOrder(SIZES, STAGES, seed=3)
    indices, epochs = order.run(0, 9000)
    first = 0
    for number, size in enumerate(SIZES.values()):
        mine = indices[sources_of(indices) == number] - first
        first += size
        for epoch in range(len(mine) // size):
            here = mine[epoch * size : (epoch + 1) * size]
            assert sorted(here.tolist()) == list(range(size))
        assert (epochs[sources_of(indices) == number] == np.arange(len(mine)) // size).all()
        assert order.epochs_before(9000)["abcd"[number]] == pytest.approx(len(mine) / size)


def test_any_position_without_those_before() -> None:
    order = MixtureOrder(SIZES, STAGES, seed=3)
    whole = order.run(0, 12_000)
    at = np.random.default_rng(0).integers(0, 12_000, 500)
    fresh = MixtureOrder(SIZES, STAGES, seed=3).examples(at)
    for part, all_of_it in zip(fresh, whole, strict=True):
        assert (part == all_of_it[at]).all()
    assert (MixtureOrder(SIZES, STAGES, seed=4).run(0, 100)[0] != whole[0][:100]).any()
    order.run(10**12, 64)  # at once


def test_killed_and_resumed_on_other_slices() -> None:
    """Ten times, at random steps, with as many processes as there are: the sequence is that of the undisturbed run."""
    batch, steps = 24, 500
    undisturbed = TrainBatches(Numbers(), MixtureOrder(SIZES, STAGES, 3), batch, 0, 1)
    expected = np.concatenate([undisturbed.at(step * batch)["ids"] for step in range(steps)])
    stops = sorted(np.random.default_rng(5).choice(steps, 10, replace=False).tolist())
    seen, start, stages = [], 0, tuple(STAGES)
    for stop, processes in zip([*stops, steps], [3, 1, 2, 4, 6, 2, 1, 3, 2, 8, 1], strict=True):
        saved = [stage.saved() for stage in stages]
        check_saved(saved)
        stages = history([Stage(**stage) for stage in saved], STAGES, start * batch)
        order = MixtureOrder(SIZES, stages, 3)
        parts = [TrainBatches(Numbers(), order, batch, process, processes) for process in range(processes)]
        for step in range(start, stop):
            seen += [part.at(step * batch)["ids"] for part in parts]
        start = stop
    assert (np.concatenate(seen) == expected).all()


def test_weights_that_change_on_resume() -> None:
    """What was trained stays as it was; from the position on the new weights count, and each source goes on where it was."""
    changed = history([Stage(0, WEIGHTS)], [Stage(0, {**WEIGHTS, "a": 0.1})], 3000)
    assert [stage.start for stage in changed] == [0, 3000]
    old, new = MixtureOrder(SIZES, [Stage(0, WEIGHTS)], 3), MixtureOrder(SIZES, changed, 3)
    assert (old.run(0, 3000)[0] == new.run(0, 3000)[0]).all()
    assert old.epochs_before(3000) == new.epochs_before(3000)
    indices, _ = new.run(0, 6000)
    of_a = indices[sources_of(indices) == 0]
    assert len(set(of_a.tolist())) == min(len(of_a), SIZES["a"])
    assert history(changed, [Stage(0, {**WEIGHTS, "a": 0.1})], 4000) == changed


def test_a_source_that_is_added() -> None:
    """The others keep their order, and what came before."""
    sizes = {**SIZES, "new": 100}
    stages = history([Stage(0, WEIGHTS)], [Stage(0, {**WEIGHTS, "new": 1.0})], 2000)
    order = MixtureOrder(sizes, stages, 3)
    assert (order.run(0, 2000)[0] == MixtureOrder(SIZES, [Stage(0, WEIGHTS)], 3).run(0, 2000)[0]).all()
    assert order.epochs_before(2000)["new"] == 0 < order.epochs_before(2100)["new"]
    one, other = fingerprint_of({"a": b"1", "b": b"2"}), fingerprint_of({"a": b"1", "b": b"2", "new": b"3"})
    assert missing_sources(one, other) is False and missing_sources(other, one) is True
    assert missing_sources(one, fingerprint_of({"a": b"other", "b": b"2"})) is True
    assert missing_sources(b"one text", other) is None


def test_added_sources_leave_the_past_alone() -> None:
    """However many they are, and whatever rounding does with their weights of 0."""
    names = [f"s{n:02}" for n in range(32)]
    weights = {name: 0.1 * (n % 9 + 1) for n, name in enumerate(names)}
    old = MixtureOrder(dict.fromkeys(names, 50), [Stage(0, weights)], 0)
    for count in (1, 2, 40):
        added = [f"a{n}" for n in range(count)]
        stages = history([Stage(0, weights)], [Stage(0, {**weights, **dict.fromkeys(added, 1.0)})], 90_000)
        new = MixtureOrder(dict.fromkeys([*added, *names], 50), stages, 0)
        indices, epochs = new.run(0, 90_000)
        assert (indices - 50 * count == old.run(0, 90_000)[0]).all() and (epochs == old.run(0, 90_000)[1]).all()


@pytest.mark.parametrize("weights", [{"a": 1.0}, {f"s{n}": 1.0 / (n + 1) for n in range(70)}, {"a": 1e-9, "b": 1.0}])
def test_numbers_of_sources(weights: dict[str, float]) -> None:
    """One source alone has its own order; many, and very rare ones, never go back."""
    sizes = dict.fromkeys(weights, 40)
    order = MixtureOrder(sizes, [Stage(0, weights)], 0)
    before = order.epochs_before(0)
    for position in range(0, 60_000, 4999):
        now = order.epochs_before(position)
        assert all(now[name] >= before[name] for name in sizes)
        assert sum(now.values()) * 40 == pytest.approx(position)
        before = now
    if len(weights) == 1:
        indices, _ = order.run(0, 40)
        assert sorted(indices.tolist()) == list(range(40))
        assert not isinstance(order, ShuffledOrder)


@pytest.mark.parametrize(
    "saved",
    [
        [],
        [{"start": 5, "weights": {"a": 1}}],
        [{"start": 0, "weights": {"a": 1}}, {"start": 7, "weights": {"a": 2}}, {"start": 5, "weights": {"a": 2}}],
        [{"start": 0, "weights": {"a": "1"}}],
        [{"start": 0, "weights": {"a": float("inf")}}],
        [{"start": 0, "weights": {"a": 0}}],
        [{"start": 0}],
        "none",
    ],
)
def test_damaged_history(saved: object) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        check_saved(saved)


def test_weights_from_the_first_step_take_the_place_of_the_others() -> None:
    """So that the stages in a checkpoint are in order, and it can be read; older ones had two at the beginning."""
    section = MixtureData.model_validate(
        {
            "name": "mixture",
            "sources": {name: {"name": "text", "path": "x"} for name in "ab"},
            "weights_from": {1: {"a": 0, "b": 1}, 3: {"a": 1, "b": 1}},
        }
    )
    assert section.weights_by_step() == [(0, {"a": 0, "b": 1}), (2, {"a": 1, "b": 1})]
    check_saved([{"start": 0, "weights": {"a": 1}}, {"start": 0, "weights": {"a": 2}}])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"weights": {"a": 1e308, "b": 1e308}}, "too large to add up"),
        ({"skip": [[1, 9_000_000_000_000_000_000]]}, "which no training reaches"),
    ],
)
def test_numbers_that_are_too_large(keys: dict[str, Any], message: str) -> None:
    sources = {name: {"name": "text", "path": "x"} for name in "ab"}
    with pytest.raises(ValueError, match=message):
        MixtureData.model_validate({"name": "mixture", "sources": sources, **keys})
