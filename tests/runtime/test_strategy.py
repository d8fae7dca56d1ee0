"""Every strategy computes what a single device computes from the same global batch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
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
from podrun.runtime.parallel import strategy_class
from podrun.runtime.parallel.base import HostState, Strategy
from podrun.runtime.state import Batch, Params, TrainState
from podrun.runtime.tasks.base import Scalars, Task
from podrun.runtime.tasks.language_model import LanguageModel

DEVICES = 4
STRATEGIES = ["pmap"]
VOCABULARY = 32
CONTEXT = 8

every_strategy = pytest.mark.parametrize("name", STRATEGIES)


@pytest.fixture(autouse=True)
def _devices() -> None:
    assert jax.local_device_count() == DEVICES


@functools.cache
def dataset() -> Dataset:
    """With a validation split whose last window and last batch are ragged."""
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=700).astype(np.uint16)
    train, validation = TrainWindows(tokens[:600], CONTEXT, seed=0), ValidationWindows(tokens[600:], CONTEXT)
    assert validation.size % 8
    return Dataset(train, validation, b"", vocabulary=VOCABULARY)


def job(**keys: Any) -> Config:
    model = {"layers": 1, "heads": 2, "width": 16, "context": CONTEXT, "dropout": keys.pop("dropout", 0.0)}
    return Config.model_validate({"steps": 10, "batch_size": 8, "model": model, "sample": {"tokens": 0}, **keys})


def adam() -> optax.GradientTransformation:
    """Its eps keeps the rounding of gradients that are almost zero from deciding the update."""
    return optax.adam(0.01, eps=1e-3)


def strategy(name: str, accumulate: int = 1, dropout: float = 0.0) -> Strategy:
    return compiled(name, accumulate, dropout)


@functools.cache
def compiled(name: str, accumulate: int, dropout: float) -> Strategy:
    """Each strategy has compiled functions of its own."""
    task = LanguageModel(job(dropout=dropout), dataset())
    return strategy_class(name)(task, adam(), optax.linear_schedule(1.0, 0.0, 4), 0, accumulate)


@functools.cache
def initial(name: str) -> HostState:
    """Compiled once; the strategies differ in what a step is only."""
    return copies(strategy(name).to_host(strategy(name).init()))


def copies(state: HostState) -> HostState:
    """Host arrays may be views of the device's buffers."""
    found: HostState = jax.tree.map(np.array, state)
    return found


def batches(count: int) -> Iterator[Batch]:
    order = TrainBatches(dataset().train, 8, 0, 1, seed=0)
    return (order.at(8 * i) for i in range(count))


def train(one: Strategy, state: TrainState, steps: int) -> tuple[TrainState, list[dict[str, float]]]:
    history = []
    for batch in batches(steps):
        state, metrics = one.step(state, one.shard(batch))
        history.append({key: float(value) for key, value in metrics.items()})
    return state, history


@functools.cache
def plain(steps: int) -> tuple[Params, list[dict[str, float]]]:
    """The same training in one function on one device, with nothing of the strategies but the initial state."""
    task = LanguageModel(job(), dataset())
    optimizer = adam()

    @jax.jit
    def step(params: Params, opt_state: Any, tokens: jax.Array) -> tuple[Params, Any, Scalars]:
        def mean_loss(params: Params) -> tuple[jax.Array, Scalars]:
            return task.loss(params, {"tokens": tokens}, jax.random.key(0))

        (loss, metrics), gradients = jax.value_and_grad(mean_loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        metrics = {**metrics, "loss": loss, "grad_norm": optax.global_norm(gradients)}
        return optax.apply_updates(params, updates), opt_state, metrics

    params = jax.jit(task.init)(jax.random.fold_in(jax.random.key(0), 0))
    opt_state = jax.jit(optimizer.init)(params)
    history = []
    for batch in batches(steps):
        params, opt_state, metrics = step(params, opt_state, batch["tokens"])
        history.append({key: float(value) for key, value in metrics.items()})
    return params, history


def assert_close(found: Any, expected: Any, rtol: float = 1e-6, atol: float = 1e-7) -> None:
    """Two trees of arrays."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, a), (_, b) in zip(jax.tree.leaves_with_path(found), jax.tree.leaves_with_path(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol, atol, err_msg=jax.tree_util.keystr(path))


def assert_identical(found: Any, expected: Any) -> None:
    """Two trees of arrays, bit for bit and of the same types."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, a), (_, b) in zip(jax.tree.leaves_with_path(found), jax.tree.leaves_with_path(expected), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype, path
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), path


# --- one step -------------------------------------------------------------------------------------------------------


@every_strategy
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_that_of_a_single_device(name: str, accumulate: int) -> None:
    """Losses, gradient norms and parameters are those of a plain jit of the same global batches, in one part or two."""
    params, expected = plain(3)
    one = strategy(name, accumulate)
    state, found = train(one, one.place(initial(name)), 3)
    for metrics, reference in zip(found, expected, strict=True):
        assert {key: metrics[key] for key in reference} == pytest.approx(reference, rel=2e-6)
    assert_close(state.params, params)
    assert int(state.step) == 3


@every_strategy
def test_metrics_of_a_step(name: str) -> None:
    """Those of the task, the gradient's norm, and the learning rate of the step that was done."""
    _, history = train(strategy(name), strategy(name).place(initial(name)), 2)
    assert history[0].keys() == {"loss", "accuracy", "grad_norm", "learning_rate"}
    assert [metrics["learning_rate"] for metrics in history] == [1.0, 0.75]


@every_strategy
def test_all_rows_of_a_batch_count(name: str) -> None:
    """A change in any row of the global batch changes the gradient."""
    (batch,) = batches(1)
    one = strategy(name)
    norms = set()
    for row in [None, *range(8)]:
        tokens = batch["tokens"].copy()
        if row is not None:
            tokens[row] = (tokens[row] + 1) % VOCABULARY
        _, metrics = one.step(one.place(initial(name)), one.shard({"tokens": tokens}))
        norms.add(float(metrics["grad_norm"]))
    assert len(norms) == 9


# --- state ----------------------------------------------------------------------------------------------------------


@every_strategy
def test_initial_state_does_not_depend_on_the_devices(name: str) -> None:
    """It is bit for bit that of a single device."""
    one = strategy(name)
    assert_identical(initial(name), one.to_host(jax.jit(one.initial_state)()))


@every_strategy
def test_a_step_reuses_the_buffers_of_the_state(name: str) -> None:
    """The old state is gone: two copies at a time would not fit."""
    one = strategy(name)
    (batch,) = batches(1)
    old = one.place(initial(name))
    new, metrics = one.step(old, one.shard(batch))
    jax.block_until_ready(metrics)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(new))


@every_strategy
def test_a_host_copy_outlives_the_state(name: str) -> None:
    """A checkpoint is written while training goes on: steps that reuse the buffers do not change it."""
    one = strategy(name)
    state = one.place(initial(name))
    host = one.to_host(state)
    before = jax.tree.map(np.array, host)
    for batch in batches(3):
        state, metrics = one.step(state, one.shard(batch))
        jax.block_until_ready(metrics)
    assert_identical(host, before)
    assert (host["params"]["wte"]["embedding"] != one.to_host(state)["params"]["wte"]["embedding"]).any()


@every_strategy
def test_host_state_round_trip(name: str) -> None:
    """Numpy arrays in nested dicts, one copy; placed again they are bit for bit the same, with optimizer and step."""
    one = strategy(name)
    state, _ = train(one, one.place(initial(name)), 2)
    host = copies(one.to_host(state))
    assert {type(leaf) for leaf in jax.tree.leaves(host)} == {np.ndarray}
    assert host["params"]["wte"]["embedding"].shape == (VOCABULARY, 16)
    assert int(host["step"]) == 2
    placed = one.place(host)
    assert jax.tree.structure(placed) == jax.tree.structure(state)
    assert_identical(one.to_host(placed), host)


@every_strategy
def test_training_goes_on_from_a_placed_state(name: str) -> None:
    """Bit for bit as if it had not been interrupted."""
    one = strategy(name)
    first, second, third = batches(3)
    state = one.place(initial(name))
    for batch in (first, second):
        state, _ = one.step(state, one.shard(batch))
    placed = one.place(copies(one.to_host(state)))
    state, expected = one.step(state, one.shard(third))
    placed, found = one.step(placed, one.shard(third))
    assert_identical(found, expected)
    assert_identical(one.to_host(placed), one.to_host(state))


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
    one = strategy_class(name)(Draw(job(), dataset()), adam(), optax.constant_schedule(0.0), 3, accumulate)
    _, history = train(one, one.init(), 3)
    for step, metrics in enumerate(history):
        keys = [one.step_key(jnp.int32(step), device) for device in range(DEVICES)]
        if accumulate > 1:
            keys = [part for key in keys for part in jax.random.split(key, accumulate)]
        draws = np.array([float(jax.random.uniform(key)) for key in keys])
        assert metrics["loss"] == pytest.approx(draws.mean(), rel=1e-6)
        assert metrics["square"] == pytest.approx((draws**2).mean(), rel=1e-6)


@every_strategy
def test_dropout_is_at_work_and_repeatable(name: str) -> None:
    """Training with dropout gives other losses than without, and the same each time."""

    def losses(dropout: float) -> list[float]:
        one = strategy(name, dropout=dropout)
        return [metrics["loss"] for metrics in train(one, one.place(initial(name)), 2)[1]]

    assert losses(0.5) == losses(0.5)
    assert losses(0.5)[0] != losses(0.0)[0]


# --- batches and evaluation -----------------------------------------------------------------------------------------


@every_strategy
def test_devices_get_the_rows_in_order(name: str) -> None:
    """Device d has the d-th of the equal parts of the batch."""
    rows = np.arange(24, dtype=np.int32).reshape(8, 3)
    sharded = strategy(name).shard({"tokens": rows})["tokens"]
    by_device = {shard.device: np.asarray(shard.data) for shard in sharded.addressable_shards}
    for number, device in enumerate(jax.local_devices()):
        np.testing.assert_array_equal(by_device[device].reshape(2, 3), rows[2 * number : 2 * number + 2])


@every_strategy
def test_evaluation_is_a_plain_sum_over_the_split(name: str) -> None:
    """With a ragged last window in a ragged last batch, every token is counted once."""
    one = strategy(name)
    params = one.place(initial(name)).params
    sums: dict[str, float] = {}
    for batch in evaluation_batches(dataset().validation, 8, 0, 1, None):
        for key, value in one.evaluate(params, one.shard(batch)).items():
            sums[key] = sums.get(key, 0.0) + float(value)

    task = one.task
    assert isinstance(task, LanguageModel)
    host = jax.tree.map(np.asarray, params)
    apply = jax.jit(lambda tokens: jax.nn.log_softmax(task._model.apply({"params": host}, tokens[None], True)[0]))
    validation = np.random.default_rng(0).integers(VOCABULARY, size=700)[600:]
    loss = correct = 0.0
    for start in range(0, 99, CONTEXT):
        window = np.zeros(CONTEXT, np.int32)
        inputs = validation[start : min(start + CONTEXT, 99)]
        window[: len(inputs)] = inputs
        log_p = np.asarray(apply(window), np.float64)
        for place, target in enumerate(validation[start + 1 : start + 1 + len(inputs)]):
            loss -= log_p[place, target]
            correct += log_p[place].argmax() == target
    assert sums == pytest.approx({"loss": loss, "correct": correct, "count": 99.0}, rel=1e-6)
    assert task.summarize(sums) == pytest.approx(
        {"loss": loss / 99, "perplexity": np.exp(loss / 99), "accuracy": correct / 99}, rel=1e-5
    )
