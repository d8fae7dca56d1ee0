"""Every optimizer with weight decay, for models of every framework with equal weights, against plain optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from podrun.runtime.config import Config
from podrun.runtime.data import load_dataset
from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches

from ...tiers import mostly_long
from ..strategies import assert_close, copies, make, place, train
from .natives import INPUTS, NAMES, OUTPUTS, SHAPES, PlainNet, as_in

pytest.importorskip("equinox", reason="the extra `test` has it")

STEPS, RATE, DECAY = 20, 0.02, 0.5


def muon(axes: tuple[int, int]) -> optax.GradientTransformation:
    """Hidden matrices for Muon, all other arrays for Adam; the head is decayed as well. `axes` are those of in and out."""
    adam = {
        name: optax.adamw(3e-4, weight_decay=decay, nesterov=True) for name, decay in (("adam", 0.0), ("head", DECAY))
    }
    labels = {layer: {"w": "muon", "b": "adam"} for layer in SHAPES}
    labels["norm"]["w"], labels["head"]["w"] = "adam", "head"
    numbers = optax.contrib.MuonDimensionNumbers(*axes)
    inner = optax.contrib.muon(
        RATE, weight_decay=DECAY, muon_weight_dimension_numbers=lambda p: jax.tree.map(lambda _: numbers, p)
    )
    return optax.partition({"muon": inner, **adam}, labels)


MASK = {layer: {"w": layer != "norm", "b": False} for layer in SHAPES}
PLAIN: dict[str, Callable[[str], optax.GradientTransformation]] = {
    "adamw": lambda _: optax.adamw(RATE, 0.9, 0.95, weight_decay=DECAY, mask=MASK),
    "lion": lambda _: optax.lion(RATE, 0.9, 0.99, weight_decay=DECAY, mask=MASK),
    # optax takes the first axis of a matrix for the input, which is the output of Equinox's.
    "muon": lambda framework: muon((1, 0) if framework == "equinox" else (0, 1)),
}


def weights() -> Any:
    generator = np.random.default_rng(0)
    return jax.tree.map(
        lambda shape: generator.normal(size=shape).astype(np.float32) / 2,
        SHAPES,
        is_leaf=lambda s: isinstance(s, tuple),
    )


def by_optax(transformation: optax.GradientTransformation, batches: list[Any]) -> tuple[list[float], Any]:
    """Train the model of plain JAX by a loop of one's own."""

    def loss(params: Any, batch: Any) -> jax.Array:
        logits = PlainNet().apply(params, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, batch)
        updates, state = transformation.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    params: Any = jax.tree.map(jnp.asarray, weights())
    state, losses = transformation.init(params), []
    for batch in batches:
        params, state, value = step(params, state, batch)
        losses.append(float(value))
    return losses, params


CASES = [(framework, name) for framework in NAMES for name in PLAIN]
QUICK = {("equinox", "muon"), ("plain", "adamw"), ("nnx", "lion")}


@pytest.mark.parametrize(
    ("framework", "name"), mostly_long(CASES, lambda _, case: case in QUICK, lambda _, case: case == ("linen", "muon"))
)
def test_twenty_steps_are_those_of_plain_optax(framework: str, name: str) -> None:
    """Losses and parameters, within 1e-5."""
    data = {"name": "make_classification", "samples": 80, "features": INPUTS, "classes": OUTPUTS, "informative": 8}
    section = {"name": name, "learning_rate": RATE, "weight_decay": DECAY, "clip_norm": None}
    keys = {"steps": STEPS, "batch_size": 8, "data": data, "optimizer": section, "schedule": {"name": "constant"}}
    model = f"{__package__}.natives:{NAMES[framework][0]}"
    config = Config.model_validate({"task": "classification", "model": model, "parallel": "single", **keys})
    dataset = load_dataset(config)
    order = TrainBatches(dataset.train, ShuffledOrder(dataset.train.size, 0), 8, 0, 1)
    batches = [order.at(8 * n) for n in range(STEPS)]
    one = make(config, dataset)
    named = {**copies(one.savable(one.init())), "params": as_in(framework, weights())}
    state, history = train(one, place(one, named), batches)
    losses, params = by_optax(PLAIN[name](framework), batches)
    assert [metrics["loss"] for metrics in history] == pytest.approx(losses, rel=1e-5, abs=1e-5)
    assert_close(copies(one.savable(state))["params"], as_in(framework, params), rtol=1e-5, atol=1e-5)
