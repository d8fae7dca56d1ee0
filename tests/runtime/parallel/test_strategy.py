"""Every strategy computes what a single device computes from the same global batch."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podrun.runtime.config import Config
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.pipeline import TrainBatches, evaluation_batches
from podrun.runtime.data.tokens import TrainWindows, ValidationWindows
from podrun.runtime.parallel import make_strategy
from podrun.runtime.parallel.mesh import partition
from podrun.runtime.state import Batch, Params, StateDict, to_dict
from podrun.runtime.tasks import make_task
from podrun.runtime.tasks.base import Scalars, Task

from ..strategies import (
    DEVICES,
    FEATURES,
    SECTIONS,
    WIDTH,
    assert_close,
    assert_identical,
    compilations,
    copies,
    dataset,
    every_strategy,
    job,
    make,
    place,
    strategy,
    train,
)

SAME_DEVICES = [name for name in SECTIONS if name != "single"]


@pytest.fixture(autouse=True)
def _devices() -> None:
    assert jax.local_device_count() == DEVICES


@functools.cache
def batches(count: int) -> list[Batch]:
    order = TrainBatches(dataset().train, 8, 0, 1, seed=0)
    return [order.at(8 * i) for i in range(count)]


@functools.cache
def initial(ema: bool = False) -> StateDict:
    """Compiled once: that all have the same is a test of its own."""
    state = strategy("single").init()
    return copies(to_dict(state.replace(ema=state.params) if ema else state))


def plain(config: Config, data: Dataset, params: Params, given: list[Batch]) -> tuple[Params, list[dict[str, float]]]:
    """The same training in one function on one device, with nothing of the strategies."""
    task = make_task(config, data)
    optimizer = optax.adam(optax.linear_schedule(0.01, 0.0, 3), eps=1e-3)

    @jax.jit
    def step(params: Params, opt_state: Any, batch: Batch) -> tuple[Params, Any, Scalars]:
        def mean_loss(params: Params) -> tuple[jax.Array, Scalars]:
            return task.loss(params, batch, jax.random.key(0))

        (loss, metrics), gradients = jax.value_and_grad(mean_loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        metrics = {**metrics, "loss": loss, "grad_norm": optax.tree.norm(gradients)}
        return optax.apply_updates(params, updates), opt_state, metrics

    opt_state = optimizer.init(params)
    history = []
    for batch in given:
        params, opt_state, metrics = step(params, opt_state, batch)
        history.append({key: float(value) for key, value in metrics.items()})
    return params, history


@functools.cache
def reference() -> tuple[Params, list[dict[str, float]]]:
    return plain(job("single"), dataset(), initial()["params"], batches(3))


# --- one step -------------------------------------------------------------------------------------------------------


@every_strategy
@pytest.mark.parametrize("accumulate", [1, 2])
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


@functools.cache
def text() -> Dataset:
    """Of so many tokens that their embeddings are divided."""
    tokens = np.random.default_rng(0).integers(1100, size=200).astype(np.uint16)
    return Dataset(TrainWindows(tokens, 8, seed=0), ValidationWindows(tokens, 8), b"", vocabulary=1100)


def text_job(name: str) -> Config:
    return job(
        name,
        task="language_model",
        model={"name": "gpt2", "layers": 1, "heads": 2, "width": 16, "context": 8},
        data="python_source",
        accumulate=2,
    )


@functools.cache
def text_reference() -> tuple[StateDict, list[Batch], Params, list[dict[str, float]]]:
    order = TrainBatches(text().train, 8, 0, 1, seed=0)
    given = [order.at(8 * i) for i in range(2)]
    start = copies(to_dict(make(text_job("single"), text()).init()))
    return start, given, *plain(text_job("single"), text(), start["params"], given)


@pytest.mark.parametrize("name", ["pmap", "jit fsdp 2", "explicit fsdp 4", "shard_map"])
def test_training_gpt2_is_that_of_a_single_device(name: str) -> None:
    """Embeddings and attention too, with divided state and batches in two parts."""
    start, given, params, expected = text_reference()
    one = make(text_job(name), text())
    state, found = train(one, place(one, start), given)
    for metrics, values in zip(found, expected, strict=True):
        assert {key: metrics[key] for key in values} == pytest.approx(values, rel=1e-5)
    assert_close(state.params, params)


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
    """A state that a step has returned, and one from a checkpoint, are of the types of the one before."""
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


# --- state ----------------------------------------------------------------------------------------------------------


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
    """What one saves the others place, bit for bit, with optimizer and step; and so back."""
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
    assert tuple(partition(shape, parts)) == expected


@every_strategy
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


# --- random numbers -------------------------------------------------------------------------------------------------


@every_strategy
def test_keys_differ_by_step_and_device(name: str) -> None:
    """No device repeats the key of another, or its own of another step, or that of the initial parameters."""
    one = strategy(name)
    keys = [one.step_key(jnp.int32(step), device) for step in range(5) for device in range(DEVICES)]
    keys.append(jax.random.fold_in(jax.random.key(0), 0))
    assert len({jax.random.key_data(key).tobytes() for key in keys}) == len(keys)


class Draw(Task):
    """Its loss is a random number from the key, and its only parameter does not matter."""

    def init(self, key: jax.Array) -> Params:
        return {"w": jnp.zeros(())}

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        draw = jax.random.uniform(key)
        return draw + 0 * params["w"], {"square": draw**2}

    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        raise NotImplementedError

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        raise NotImplementedError


@every_strategy
@pytest.mark.parametrize("accumulate", [1, 2])
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


@pytest.mark.parametrize("name", SAME_DEVICES)
def test_dropout_is_the_same_on_the_same_devices(name: str) -> None:
    """It changes the losses; they are the same each time, and for all strategies."""
    one = strategy(name, dropout=0.5)
    again = [metrics["loss"] for metrics in train(one, place(one, initial()), batches(2))[1]]
    assert again == losses_with_dropout(name)
    assert again == pytest.approx(losses_with_dropout("pmap"), rel=1e-5)
    assert again[0] != pytest.approx(reference()[1][0]["loss"], rel=1e-3)


# --- batches and evaluation -----------------------------------------------------------------------------------------


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


@every_strategy
def test_the_step_can_be_looked_at_before_it_runs(name: str) -> None:
    """Lowered from shapes alone, it is the program of the step: it takes the batch's shapes and names its inputs' types."""
    one = strategy(name)
    lowered = one.lowered(batches(1)[0])
    state, metrics = lowered.out_info
    abstract = one.abstract_state()
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), abstract)
    assert set(metrics.names) == {"loss", "accuracy", "grad_norm", "learning_rate"}
