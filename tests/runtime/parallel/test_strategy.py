"""Every strategy computes what a single device computes from the same global batch."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podrun.runtime.data.pipeline import evaluation_batches
from podrun.runtime.parallel import layout, make_strategy
from podrun.runtime.state import Batch, Params
from podrun.runtime.tasks import next_token
from podrun.runtime.tasks.base import Scalars, Task

from ...tiers import mostly_long
from ..strategies import (
    DEVICES,
    assert_close,
    compilations,
    copies,
    dataset,
    every_strategy,
    every_strategy_in_parts,
    job,
    make,
    place,
    random_state,
    strategy,
    train,
)
from .reference import (
    LANGUAGE_MODELS,
    ONE_LAYER,
    SAME_DEVICES,
    batches,
    initial,
    reference,
    text,
    text_batches,
    text_job,
    text_reference,
)


@every_strategy_in_parts
def test_training_is_that_of_a_single_device(name: str, accumulate: int) -> None:
    """Losses, gradient norms and parameters are those of a plain jit of the same global batches, in one part or two."""
    params, expected = reference()
    ema = None if accumulate == 1 else 0.9
    one = strategy(name, accumulate=accumulate, ema=ema) if ema else strategy(name)
    state, found = train(one, place(one, initial(ema is not None)), batches(3))
    for metrics, values in zip(found, expected, strict=True):
        assert {key: metrics[key] for key in values} == pytest.approx(values, rel=1e-5)
    assert found[0].keys() == {"loss", "accuracy", "grad_norm", "learning_rate"}
    assert [metrics["learning_rate"] for metrics in found] == pytest.approx([0.01, 0.01 * 2 / 3, 0.01 / 3])
    assert_close(state.params, params)
    assert int(state.step) == 3


@pytest.mark.parametrize(
    ("model", "name"),
    mostly_long(
        [(model, name) for model in LANGUAGE_MODELS for name in ("pmap", "jit fsdp 2", "explicit fsdp 4", "shard_map")],
        lambda _, case: case == ("decoder", "jit fsdp 2"),
        lambda _, case: case == ("decoder", "shard_map"),
    ),
)
def test_training_language_models_is_that_of_a_single_device(
    model: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embeddings and attention too, with divided state and batches in two parts; a decoder gathers one layer at a time."""
    monkeypatch.setattr(layout, "SMALL", 100)
    start, given, params, expected = text_reference(model)
    one = make(text_job(name, model), text())
    state, found = train(one, place(one, start), given)
    for metrics, values in zip(found, expected, strict=True):
        assert {key: metrics[key] for key in values} == pytest.approx(values, rel=1e-5)
    assert_close(state.params, params)


@pytest.mark.parametrize(
    "name",
    mostly_long(
        ["pmap", "jit fsdp 2", "explicit fsdp 4", "shard_map"],
        lambda *_: False,
        lambda _, name: name == "explicit fsdp 4",
    ),
)
def test_remat_changes_no_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that is computed again in the backward pass has the shardings that it had."""
    monkeypatch.setattr(layout, "SMALL", 100)
    start, given, params, expected = text_reference("decoder")
    one = make(text_job(name, "decoder", remat="block"), text())
    kernel = one.abstract_state().params["layers"]["block_1"]["mlp"]["up"]["kernel"]
    assert kernel.shape == (2, 16, 64)
    assert [*kernel.sharding.spec] == ([None, None, "fsdp"] if "fsdp" in name else [])
    state, found = train(one, place(one, start), given)
    for metrics, values in zip(found, expected, strict=True):
        assert {key: metrics[key] for key in values} == pytest.approx(values, rel=1e-5)
    assert_close(state.params, params)


@pytest.mark.parametrize(
    ("name", "accumulate"),
    mostly_long(
        [
            (name, parts)
            for parts in (1, 2)
            for name in ("pmap", "shard_map", "single", "jit fsdp 2", "explicit fsdp 4")
        ],
        lambda _, case: case in (("shard_map", 2), ("jit fsdp 2", 1)),
        lambda _, case: case in (("pmap", 1), ("single", 2), ("explicit fsdp 4", 2)),
    ),
)
def test_a_loss_in_pieces(name: str, accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of all logits at once, and so are gradients; 8 tokens are pieces of 3, 3 and 2."""
    start, given, params, expected = text_reference()
    rows = 8 // (1 if name == "single" else DEVICES) // accumulate
    monkeypatch.setattr(next_token, "_PIECE", 3 * 1100 * 4 * rows)
    one = make(text_job(name).model_copy(update={"accumulate": accumulate}), text())
    program = one.lowered(given[0]).as_text()
    assert "x3x1100xf32" in program and "x8x1100xf32" not in program
    state, found = train(one, place(one, start), given)
    for metrics, values in zip(found, expected, strict=True):
        assert {key: metrics[key] for key in values} == pytest.approx(values, rel=1e-6)
    assert_close(state.params, params)


@pytest.mark.parametrize(
    ("name", "keys"),
    mostly_long(
        [
            ("jit fsdp 2", {}),
            ("explicit fsdp 4", {"tied_head": True}),
            ("jit fsdp 2", {"tied_head": True, "logit_soft_cap": None}),
            ("explicit fsdp 4", {"scan_layers": False, "remat": "block"}),
        ],
        lambda number, _: number < 2,
        lambda number, _: number < 2,
    ),
)
def test_a_divided_head_is_gathered_by_rows(name: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and gradients are those of all logits at once. Three pieces of the 550 or 275 rows of a device need filling."""
    monkeypatch.setattr(layout, "SMALL", 100)
    whole = make(text_job("single", "decoder", **{**ONE_LAYER, **keys}), text())
    start, given = random_state(whole), text_batches()
    expected_state, expected = train(whole, place(whole, start), given)
    monkeypatch.setattr(next_token, "_PIECE", 3 * 1100 * 4)
    one = make(text_job(name, "decoder", **{**ONE_LAYER, **keys}), text())
    compiled = one.lowered(given[0]).compile()
    monkeypatch.setattr(one, "_step", compiled)  # so that it is not compiled again
    program = compiled.as_text()
    assert "[16,1100]" not in program  # neither the untied head nor its gradient
    assert not re.search(r"\[(1,)*8,1100\]", program)  # nor all logits
    state, found = train(one, place(one, start), given)
    for metrics, values in zip(found, expected, strict=True):
        assert {key: metrics[key] for key in values} == pytest.approx(values, rel=1e-5)
    assert_close(state.params, expected_state.params)


@every_strategy
def test_all_rows_of_a_batch_count(name: str) -> None:
    """A change in any row of the global batch changes the gradient."""
    (batch,) = batches(1)
    one = strategy(name)
    norms = set()
    for row in [None, *range(8)]:
        labels = batch["y"].copy()
        if row is not None:
            labels[row] = (labels[row] + 1) % 4
        _, metrics = one.step(place(one, initial()), one.shard({**batch, "y": labels}))
        norms.add(metrics.read()["grad_norm"])
    assert len(norms) == 9


@every_strategy
def test_only_the_first_step_compiles(name: str) -> None:
    """States from a step, and those from a checkpoint, have the types of the initial one."""
    one = strategy(name)
    given = [one.shard(batch) for batch in batches(3)]
    state, metrics = one.step(place(one, initial()), given[0])
    saved = copies(one.savable(state))
    before = compilations()
    for batch in given[1:]:
        state, metrics = one.step(state, batch)
    jax.block_until_ready(metrics)
    assert compilations() == before
    state = place(one, saved)
    before = compilations()
    jax.block_until_ready(one.step(state, given[1]))
    assert compilations() == before


@every_strategy
def test_keys_differ_by_step_and_device(name: str) -> None:
    """No device repeats the key of another, or its own of another step, or that of the initial parameters."""
    one = strategy(name)
    keys = [one.step_key(jnp.int32(step), device) for step in range(5) for device in range(DEVICES)]
    keys.append(jax.random.fold_in(jax.random.key(0), 0))
    assert len({jax.random.key_data(key).tobytes() for key in keys}) == len(keys)


class Draw(Task):
    """Its loss is a random number from the key, and its only parameter does not matter."""

    uses_key = True  # type: ignore[assignment]

    def init(self, key: jax.Array) -> Params:
        return {"w": jnp.zeros(())}

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        draw = jax.random.uniform(key)
        return draw + 0 * params["w"], {"square": draw**2}

    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        raise NotImplementedError

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        raise NotImplementedError


@every_strategy_in_parts
def test_each_device_draws_with_its_own_key(name: str, accumulate: int) -> None:
    """In each step, device d uses the key for (step, d); the parts of an accumulated batch use different ones."""
    config = job(name, accumulate=accumulate, seed=3)
    one = make_strategy(config, Draw(config, dataset()), optax.sgd(0.0), optax.constant_schedule(0.0))
    _, history = train(one, one.init(), batches(2))
    for step, metrics in enumerate(history):
        keys = [one.step_key(jnp.int32(step), device) for device in range(one.shares)]
        if accumulate > 1:
            keys = [part for key in keys for part in jax.random.split(key, accumulate)]
        draws = np.array([float(jax.random.uniform(key)) for key in keys])
        assert metrics["loss"] == pytest.approx(draws.mean(), rel=1e-6)
        assert metrics["square"] == pytest.approx((draws**2).mean(), rel=1e-6)


@functools.cache
def losses_with_dropout(name: str) -> list[float]:
    one = strategy(name, dropout=0.5)
    return [metrics["loss"] for metrics in train(one, place(one, initial()), batches(2))[1]]


@pytest.mark.parametrize(
    "name", mostly_long(SAME_DEVICES, lambda *_: False, lambda _, name: name in ("jit fsdp 2", "shard_map"))
)
def test_dropout_is_the_same_on_the_same_devices(name: str) -> None:
    """It changes the losses; they are the same each time, and for all strategies."""
    one = strategy(name, dropout=0.5)
    again = [metrics["loss"] for metrics in train(one, place(one, initial()), batches(2))[1]]
    assert again == losses_with_dropout(name)
    assert again == pytest.approx(losses_with_dropout("pmap"), rel=1e-5)
    assert again[0] != pytest.approx(reference()[1][0]["loss"], rel=1e-3)


@pytest.mark.parametrize("name", SAME_DEVICES)
def test_devices_get_the_rows_in_order(name: str) -> None:
    """Device d has the d-th of the equal parts of the batch."""
    rows = np.arange(24, dtype=np.int32).reshape(8, 3)
    assert (strategy(name).shares, strategy(name).data_shard) == (4, (0, 1))
    sharded = strategy(name).shard({"x": rows})["x"]
    by_device = {shard.device: np.asarray(shard.data) for shard in sharded.addressable_shards}
    for number, device in enumerate(jax.local_devices()):
        np.testing.assert_array_equal(by_device[device].reshape(2, 3), rows[2 * number : 2 * number + 2])


def test_single_uses_one_device() -> None:
    """Its batch, its state and what it computes are on the first one only."""
    one = strategy("single")
    assert (one.shares, one.data_shard) == (1, (0, 1))
    batch = one.shard(batches(1)[0])
    state, metrics = one.step(place(one, initial()), batch)
    for leaf in jax.tree.leaves((batch, state, metrics)):
        assert leaf.devices() == {jax.devices()[0]}


@every_strategy
def test_evaluation_is_a_plain_sum_over_the_split(name: str) -> None:
    """Every example is counted once, with a last batch that is not full."""
    one = strategy(name)
    state = place(one, initial())
    sums: dict[str, float] = {}
    for batch in evaluation_batches(dataset().validation, 8, 0, 1, None):
        for key, value in one.evaluate(state, one.shard(batch)).items():
            sums[key] = sums.get(key, 0.0) + float(value)

    size = dataset().validation.size
    examples = dataset().validation.gather(np.arange(size), np.zeros(size, np.int64))
    p = jax.tree.map(np.float64, initial()["params"])
    hidden = np.tanh(examples["x"] @ p["dense_0"]["kernel"] + p["dense_0"]["bias"])
    logits = hidden @ p["head"]["kernel"] + p["head"]["bias"]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -log_p[np.arange(size), examples["y"]].sum()
    correct = (log_p.argmax(-1) == examples["y"]).sum()
    assert sums == pytest.approx({"loss": loss, "correct": correct, "count": size}, rel=1e-5)
    assert one.summarize(sums) == pytest.approx({"loss": loss / size, "accuracy": correct / size}, rel=1e-5)


@pytest.mark.parametrize("name", ["pmap", "shard_map", "ensemble"])
def test_a_devices_program_gets_no_optimizer_state(name: str) -> None:
    """XLA's time grows with the square of the arrays that go into it."""
    one, batch = strategy(name), batches(1)[0]
    given = re.findall(r"sdy.manual_computation\((.*?)\)", one.lowered(batch).as_text())
    parameters = len(jax.tree.leaves(one.abstract_state().params))
    assert len(given) == 1
    assert given[0].count(",") + 1 <= parameters + len(batch) + 2  # the step, and the number of a member


@pytest.mark.parametrize("name", ["explicit", "explicit fsdp 4"])
def test_explicit_constrains_arrays_and_not_every_operation(name: str) -> None:
    """Adam's update has about 25 operations for each parameter, and XLA takes its time for every constraint."""
    one = strategy(name)
    constraints = one.lowered(batches(1)[0]).as_text().count("sdy.sharding_constraint")
    assert constraints < 4 * len(jax.tree.leaves(one.abstract_state()))


@every_strategy
def test_the_step_can_be_looked_at_before_it_runs(name: str) -> None:
    """Lowered from shapes alone, it is the program of the step: it takes the batch's shapes and names its inputs' types."""
    one = strategy(name)
    lowered = one.lowered(batches(1)[0])
    state, metrics = lowered.out_info
    abstract = one.abstract_state()
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), abstract)
    assert set(metrics.names) == {"loss", "accuracy", "grad_norm", "learning_rate"}
