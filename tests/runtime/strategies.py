"""Shared by the tests of parallelism strategies: each of them by name, on four devices, and training with it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.monitoring
import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Dataset
from podrun.runtime.optim import make_optimizer
from podrun.runtime.parallel import make_strategy
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.state import Batch, StateDict, TrainState
from podrun.runtime.tasks import make_task

from ..tiers import mostly_long

DEVICES = 4

SECTIONS: dict[str, Any] = {
    "pmap": "pmap",
    "jit": "jit",
    "jit fsdp 2": {"name": "jit", "mesh": {"fsdp": 2}},
    "explicit": "explicit",
    "explicit fsdp 4": {"name": "explicit", "mesh": {"fsdp": 4}},
    "shard_map": "shard_map",
    "single": "single",
}
"""Ways of training one model. Section `parallel` of the config."""

every_strategy = pytest.mark.parametrize("name", SECTIONS)
every_strategy_in_parts = pytest.mark.parametrize(
    ("name", "accumulate"),
    mostly_long(
        [(name, accumulate) for accumulate in (1, 2) for name in SECTIONS],
        lambda _, case: case[1] == 1 or case[0] in ("jit fsdp 2", "shard_map"),
        lambda _, case: False,
    ),
)
"""With batches in one part and in two."""

WIDTH, FEATURES = 160, 640  # the matrix between them is large enough to be divided

JOB: dict[str, Any] = {
    "task": "classification",
    "steps": 4,
    "batch_size": 8,
    "data": {
        "name": "make_classification",
        "samples": 50,
        "features": FEATURES,
        "classes": 4,
        "informative": 10,
        "validation": 0.3,
    },
    # Adam's eps keeps the rounding of gradients that are almost zero from deciding the update.
    "optimizer": {"name": "adam", "learning_rate": 0.01, "eps": 1e-3},
    "schedule": {"name": "linear"},
}


def job(name: str, dropout: float = 0.0, **keys: Any) -> Config:
    """A small classifier, trained as `name` says."""
    model = {"name": "mlp", "layers": 1, "width": WIDTH, "dropout": dropout}
    return Config.model_validate({**JOB, "model": model, "parallel": SECTIONS.get(name, name), **keys})


@functools.cache
def dataset() -> Dataset:
    """Its validation split does not fill the last batch."""
    data = load_dataset(job("single"))
    assert data.validation.size % 8
    return data


def make(config: Config, data: Dataset) -> Strategy:
    task = make_task(config, data)
    return make_strategy(config, task, *make_optimizer(config, config.total_steps(1), task.stacked))


@functools.cache
def strategy(name: str, **keys: Any) -> Strategy:
    """Each has compiled functions of its own."""
    return make(job(name, **keys), dataset())


def copies(named: StateDict) -> StateDict:
    """Return the leaves as numpy arrays that nothing else refers to."""
    found: StateDict = jax.tree.map(np.array, named)
    return found


def random_state(one: Strategy) -> StateDict:
    """Return a state with random parameters, the same for every strategy. To compile `init` can take longer than a step."""
    random = np.random.default_rng(0)

    def fill(path: Any, leaf: Any) -> Any:
        scale = 0.1 if path[0].key == "params" else 0.0
        return random.normal(0, scale, leaf.shape).astype(leaf.dtype)

    found: StateDict = jax.tree.map_with_path(fill, one.template())
    return found


def place(one: Strategy, named: StateDict) -> TrainState:
    """A state from numpy arrays, brought to where a checkpoint would have been restored to."""
    template = one.template()
    assert jax.tree.structure(named) == jax.tree.structure(template)

    def arrange(value: Any, like: Any) -> Any:
        assert (value.shape, value.dtype) == (like.shape, like.dtype)
        return np.array(value) if isinstance(like, np.ndarray) else jax.device_put(np.array(value), like.sharding)

    return one.place(jax.tree.map(arrange, named, template))


def train(one: Strategy, state: TrainState, batches: Iterable[Batch]) -> tuple[TrainState, list[dict[str, float]]]:
    """A step for each global batch."""
    history = []
    for batch in batches:
        state, metrics = one.step(state, one.shard(batch))
        history.append(one.average(metrics).read())
    return state, history


def assert_close(found: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
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


_compilations: list[str] = []


def _listen(event: str, duration: float, **keys: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _compilations.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


def compilations() -> int:
    """Return how many programs have been compiled so far in this process."""
    return len(_compilations)
