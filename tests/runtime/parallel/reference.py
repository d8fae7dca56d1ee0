"""Training in one function on one device, with which all strategies are compared."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import optax

from podrun.runtime.config import Config
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches
from podrun.runtime.data.windows import Source, TrainWindows, ValidationWindows
from podrun.runtime.state import Batch, Params, StateDict, to_dict
from podrun.runtime.tasks import make_task
from podrun.runtime.tasks.base import Scalars

from ..strategies import (
    SECTIONS,
    copies,
    dataset,
    job,
    make,
    random_state,
    strategy,
)

SAME_DEVICES = [name for name in SECTIONS if name != "single"]


@functools.cache
def batches(count: int) -> list[Batch]:
    order = TrainBatches(dataset().train, ShuffledOrder(dataset().train.size, 0), 8, 0, 1)
    return [order.at(8 * i) for i in range(count)]


@functools.cache
def initial(ema: bool = False) -> StateDict:
    """Compiled once: that all have the same is a test of its own."""
    state = strategy("single").init()
    return copies(to_dict(state.replace(ema=state.params) if ema else state))


def plain(config: Config, data: Dataset, params: Params, given: list[Batch]) -> tuple[Params, list[dict[str, float]]]:
    """Train in one function on one device, with nothing of the strategies."""
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


@functools.cache
def text() -> Dataset:
    """Make a text of so many tokens that their embeddings are divided."""
    tokens = np.random.default_rng(0).integers(1100, size=200).astype(np.uint16)
    source = Source("tokens", 1100)
    return Dataset(TrainWindows(tokens, 8, 0, source), ValidationWindows(tokens, 8, source), b"", vocabulary=1100)


LANGUAGE_MODELS: dict[str, Any] = {
    "gpt2": {"layers": 1, "heads": 2, "width": 16, "context": 8},
    "decoder": {
        "layers": 4,
        "heads": 4,
        "kv_heads": 2,
        "head_size": 6,
        "width": 16,
        "context": 8,
        "layer_types": ["sliding", "full"],
        "window": 3,
        "sliding_rope": {"theta": 10},
        "norm": "rms_plus_1",
        "post_norms": True,
        "qk_norm": True,
        "bias": "all",
        "mlp": "geglu",
        "attention_soft_cap": 5,
        "logit_soft_cap": 5,
        "scale_embedding": True,
        "tied_head": False,
    },
}
"""Language models by name; the decoder has all of its parts."""


ONE_LAYER: dict[str, Any] = {
    "layers": 1,
    "layer_types": ["full"],
    "window": None,
    "sliding_rope": None,
    "post_norms": False,
    "qk_norm": False,
}
"""Keys of a decoder that compiles in half the time, for tests of what is around its layers."""


def text_job(name: str, model: str = "gpt2", **keys: Any) -> Config:
    return job(
        name,
        task="language_model",
        model={"name": model, **LANGUAGE_MODELS[model], **keys},
        data="python_source",
        accumulate=2,
    )


@functools.cache
def text_batches() -> list[Batch]:
    order = TrainBatches(text().train, ShuffledOrder(text().train.size, 0), 8, 0, 1)
    return [order.at(8 * i) for i in range(2)]


@functools.cache
def text_reference(model: str = "gpt2") -> tuple[StateDict, list[Batch], Params, list[dict[str, float]]]:
    given = text_batches()
    start = random_state(make(text_job("single", model), text()))
    return start, given, *plain(text_job("single", model), text(), start["params"], given)
