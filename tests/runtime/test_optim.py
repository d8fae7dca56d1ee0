"""Learning rates by step, AdamW against plain numpy, the other optimizers against optax."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import yaml
from flax.traverse_util import flatten_dict

from podrun.runtime.config import Config
from podrun.runtime.config.model import GPT2Model
from podrun.runtime.config.optimizer import WSD, AdamW, Constant, Cosine, Linear, Schedule, SchedulePlugin
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.models.gpt2 import GPT2
from podrun.runtime.optim import decay_mask, make_optimizer, make_schedule
from podrun.runtime.parallel import make_strategy
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.state import Batch, Params
from podrun.runtime.tasks.base import Scalars, Task

from .strategies import assert_close, compilations

Array = np.ndarray[Any, Any]
Tree = dict[str, dict[str, Array]]


# --- schedules ------------------------------------------------------------------------------------------------------


def rates(schedule: Schedule, peak: float, steps: int) -> list[float]:
    """In each of the `steps` steps."""
    curve = make_schedule(schedule, peak, steps)
    return [float(curve(step)) for step in range(steps)]


def cosine(peak: float, final: float, steps: int) -> list[float]:
    return [final + (peak - final) * (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps + 1)]


def linear(peak: float, final: float, steps: int) -> list[float]:
    return [peak + (final - peak) * step / steps for step in range(steps + 1)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Cosine(), cosine(0.8, 0, 9)),
        (Cosine(final=0.2), cosine(0.8, 0.2, 9)),
        (Cosine(warmup_steps=4, final=0.2), [0.2, 0.4, 0.6, *cosine(0.8, 0.2, 6)]),
        (Cosine(warmup_steps=9), [0.8 * n / 9 for n in range(1, 9)] + [0.8, 0]),
        (Cosine(warmup_steps=20), [0.8 * n / 20 for n in range(1, 11)]),
        (WSD(warmup_steps=2, decay_steps=20), [0.4, *linear(0.8, 0, 8)]),
        (Linear(), linear(0.8, 0, 9)),
        (Linear(warmup_steps=1, final=0.2), linear(0.8, 0.2, 9)),
        (Linear(warmup_steps=2, final=0.4), [0.4, *linear(0.8, 0.4, 8)]),
        (Linear(final=0.8), [0.8] * 10),
        (Constant(), [0.8] * 10),
        (Constant(warmup_steps=4), [0.2, 0.4, 0.6] + [0.8] * 7),
        (WSD(), [0.8] * 9 + [0]),
        (WSD(decay_steps=4, final=0.2), [0.8] * 6 + [0.65, 0.5, 0.35, 0.2]),
        (WSD(warmup_steps=4, decay_steps=4), [0.2, 0.4, 0.6] + [0.8] * 3 + [0.6, 0.4, 0.2, 0]),
        (WSD(warmup_steps=6, decay_steps=4), [0.8 * n / 6 for n in range(1, 6)] + [0.8, 0.6, 0.4, 0.2, 0]),
        (WSD(decay_steps=10), linear(0.8, 0, 9)),
    ],
    ids=str,
)
def test_schedule(schedule: Schedule, expected: list[float]) -> None:
    """The first of w warm-up steps has peak / w, the last has the peak, and the last step has `final`."""
    assert rates(schedule, 0.8, 10) == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("section", [Cosine, Linear, WSD])
def test_schedule_after_its_end(section: type[Cosine | Linear | WSD]) -> None:
    """The rate stays `final`: it never rises again."""
    curve = make_schedule(section(warmup_steps=2, final=0.1), 0.8, 10)
    assert [float(curve(step)) for step in (10, 11, 15, 1000)] == pytest.approx([0.1] * 4)


def test_one_step() -> None:
    """The shortest job has the full rate."""
    assert rates(Cosine(), 0.8, 1)[0] == pytest.approx(0.8)


def users_schedule(options: dict[str, Any], peak: float, steps: int) -> optax.Schedule:
    """Falls from the peak to 0 as the `power` of what is left."""
    return lambda step: peak * (1 - step / steps) ** options["power"]


def of_python_numbers(options: dict[str, Any], peak: float, steps: int) -> Any:
    return lambda step: peak if step < 5 else 0.0


def of_arrays(options: dict[str, Any], peak: float, steps: int) -> Any:
    return lambda step: jnp.full(2, peak)


def no_function(options: dict[str, Any], peak: float, steps: int) -> Any:
    return peak


def test_users_schedule() -> None:
    section = SchedulePlugin(name=f"{__name__}:users_schedule", options={"power": 2})
    assert rates(section, 0.8, 10) == pytest.approx([0.8 * (1 - step / 10) ** 2 for step in range(10)], rel=1e-5)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("of_python_numbers", "fails with TracerBoolConversionError"),
        ("of_arrays", r"returns an array of shape \(2,\), expected a number"),
        ("no_function", "its `result` is float, which cannot be called with"),
    ],
)
def test_what_is_no_schedule(function: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_schedule(SchedulePlugin(name=f"{__name__}:{function}"), 0.8, 10)


# --- weight decay ---------------------------------------------------------------------------------------------------


def test_what_is_decayed_in_gpt2() -> None:
    """As in nanoGPT: the kernels of attention and MLP, and both tables of embeddings; no biases, no norms."""
    module = GPT2(GPT2Model(layers=2, heads=2, width=8, context=4), 11, jnp.dtype("float32"))
    params = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    mask = flatten_dict(decay_mask(AdamW(), params), sep="/")
    assert mask.keys() == flatten_dict(params, sep="/").keys()
    layers = ("attn/c_attn", "attn/c_proj", "mlp/c_fc", "mlp/c_proj")
    tables = {"wte/embedding", "wpe/embedding"}
    kernels = {f"h_{i}/{n}/kernel" for i in range(2) for n in layers}
    assert {name for name, decayed in mask.items() if decayed} == tables | kernels


def test_the_example_has_the_decay_of_nanogpt() -> None:
    """Which decays every parameter of two or more dimensions by 0.1, and clips at 1 (its `configure_optimizers`)."""
    values = yaml.safe_load((Path(__file__).parents[2] / "examples" / "gpt2_124m.yaml").read_text())
    section = Config.model_validate(values).optimizer
    assert isinstance(section, AdamW)
    assert (section.b1, section.b2, section.weight_decay, section.clip_norm) == (0.9, 0.95, 0.1, 1.0)
    module = GPT2(GPT2Model(layers=1, heads=2, width=8, context=4), 11, jnp.dtype("float32"))
    params = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    mask = decay_mask(section, params)
    assert all(decayed == (leaf.ndim >= 2) for decayed, leaf in zip(*map(jax.tree.leaves, (mask, params)), strict=True))


def test_decay_by_name() -> None:
    """A regular expression is of whole names, and has the last word: it decays a bias as well."""
    params = tree(lambda shape: np.zeros(shape, np.float32))
    mask = flatten_dict(decay_mask(AdamW(decay=r"wte\..*|c_fc\.bias"), params), sep=".")
    assert {name for name, decayed in mask.items() if decayed} == {"wte.embedding", "c_fc.bias"}


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
@pytest.mark.parametrize(
    ("decay", "params", "reason"),
    [
        (None, {"w": (3,), "blocks": {"b": (2, 3)}}, "no parameter has two or more dimensions"),
        (
            "kernel",
            {"dense": {"kernel": (3, 3)}},
            "'kernel' matches no parameter's full name; the names are dense.kernel",
        ),
    ],
)
def test_a_decay_of_nothing_is_a_mistake(name: str, decay: str | None, params: Any, reason: str) -> None:
    """Told when the state is made, before training; with weight_decay 0 nothing is asked for."""
    arrays = jax.tree.map(
        jnp.zeros, {**params, "hidden": (2, 2)} if name == "muon" and decay else params, is_leaf=is_shape
    )
    transformation, _ = optimizer({"name": name, "weight_decay": 0.1, "decay": decay})
    with pytest.raises(UserError, match="matrix between hidden" if name == "muon" and not decay else re.escape(reason)):
        jax.eval_shape(transformation.init, arrays)
    if name != "muon":
        jax.eval_shape(optimizer({"name": name, "weight_decay": 0.0, "decay": decay})[0].init, arrays)


def is_shape(value: Any) -> bool:
    return isinstance(value, tuple)


@pytest.mark.parametrize("decay", ["(a", "a{99999999999999999999}", "[z-a]"])
def test_a_decay_that_is_no_regular_expression(decay: str) -> None:
    with pytest.raises(ValueError, match="is not a regular expression"):
        AdamW(decay=decay)


# --- AdamW ----------------------------------------------------------------------------------------------------------


def optimizer(section: dict[str, Any], **schedule: Any) -> tuple[optax.GradientTransformation, optax.Schedule]:
    keys = {"steps": 10, "batch_size": 1, "optimizer": section, "schedule": schedule}
    return make_optimizer(Config.model_validate(keys), steps=10)


def tree(make: Callable[[tuple[int, ...]], Array]) -> Tree:
    """Parameters of all four kinds."""
    return {
        "c_fc": {"kernel": make((4, 3)), "bias": make((3,))},
        "ln_f": {"scale": make((4,)), "bias": make((4,))},
        "wte": {"embedding": make((5, 4))},
    }


def adamw(params: Tree, gradients: list[Tree], rate: optax.Schedule, section: AdamW) -> dict[str, Array]:
    """AdamW after algorithm 2 of Loshchilov & Hutter (2019), with the decay scaled by the rate; float64."""
    p = {name: leaf.astype(np.float64) for name, leaf in flatten_dict(params, sep="/").items()}
    m = {name: np.zeros_like(leaf) for name, leaf in p.items()}
    v = {name: np.zeros_like(leaf) for name, leaf in p.items()}
    for step, tree in enumerate(gradients):
        g = {name: leaf.astype(np.float64) for name, leaf in flatten_dict(tree, sep="/").items()}
        norm = np.sqrt(sum((leaf**2).sum() for leaf in g.values()))
        clip = 1.0 if section.clip_norm is None else min(1.0, section.clip_norm / norm)
        for name in p:
            m[name] = section.b1 * m[name] + (1 - section.b1) * clip * g[name]
            v[name] = section.b2 * v[name] + (1 - section.b2) * (clip * g[name]) ** 2
            m_hat = m[name] / (1 - section.b1 ** (step + 1))
            v_hat = v[name] / (1 - section.b2 ** (step + 1))
            decay = section.weight_decay if p[name].ndim == 2 else 0.0
            p[name] = p[name] - float(rate(step)) * (m_hat / (np.sqrt(v_hat) + section.eps) + decay * p[name])
    return p


@pytest.mark.parametrize("clip_norm", [None, 0.5, 1000.0])
def test_adamw_is_that_of_plain_numpy(clip_norm: float | None) -> None:
    """Three steps with warm-up, decay of matrices only, and clipping off, at work, and out of reach."""
    section = AdamW(learning_rate=0.1, b1=0.8, b2=0.9, eps=1e-3, weight_decay=0.3, clip_norm=clip_norm)
    transformation, rate = optimizer(section.model_dump(), warmup_steps=2)
    generator = np.random.default_rng(0)
    params = tree(lambda shape: generator.normal(size=shape).astype(np.float32))
    gradients = [tree(lambda shape: generator.normal(size=shape).astype(np.float32)) for _ in range(3)]
    found: Any = jax.tree.map(jnp.asarray, params)
    state = transformation.init(found)
    for gradient in gradients:
        updates, state = transformation.update(gradient, state, found)
        found = optax.apply_updates(found, updates)
    expected = adamw(params, gradients, rate, section)
    for name, leaf in flatten_dict(found, sep="/").items():
        np.testing.assert_allclose(leaf, expected[name], rtol=2e-6, atol=2e-7, err_msg=name)


def test_clipping_scales_the_whole_gradient() -> None:
    """All leaves by one factor, so that their common norm is `clip_norm`; a smaller gradient is left as it is."""

    def first_moment(clip_norm: float | None, gradient: Tree) -> dict[str, Array]:
        transformation, _ = optimizer({"b1": 0.5, "clip_norm": clip_norm})
        _, state = transformation.update(gradient, transformation.init(gradient), gradient)
        (adam,) = [part for part in jax.tree.leaves(state, is_leaf=is_adam) if is_adam(part)]
        return {name: np.asarray(leaf) * 2 for name, leaf in flatten_dict(adam.mu, sep="/").items()}

    def is_adam(part: Any) -> bool:
        return isinstance(part, optax.ScaleByAdamState)

    gradient = tree(lambda shape: np.full(shape, 0.5, np.float32))  # 43 numbers
    norm = 0.5 * math.sqrt(43)
    for clip_norm, factor in ((None, 1.0), (norm / 4, 0.25), (norm * 1.01, 1.0)):
        for name, leaf in first_moment(clip_norm, gradient).items():
            np.testing.assert_allclose(leaf, 0.5 * factor, rtol=1e-6, err_msg=f"{name} {clip_norm}")


def test_the_rate_for_the_metrics_is_the_one_that_is_applied() -> None:
    """With the gradient's size taken away by Adam, the first update is as large as the rate."""
    transformation, rate = optimizer({"learning_rate": 0.1, "weight_decay": 0.0, "clip_norm": None}, warmup_steps=5)
    gradient = tree(lambda shape: np.ones(shape, np.float32))
    updates, _ = transformation.update(gradient, transformation.init(gradient), gradient)
    assert float(rate(0)) == pytest.approx(0.02)
    for leaf in jax.tree.leaves(updates):
        np.testing.assert_allclose(leaf, -0.02, rtol=1e-5)


# --- the other optimizers --------------------------------------------------------------------------------------------


def large(generator: np.random.Generator) -> Tree:
    """Parameters with matrices that are divided over devices."""
    return {
        "wte": {"embedding": generator.normal(size=(1040, 16)).astype(np.float32)},
        "dense": {
            "kernel": generator.normal(size=(192, 96)).astype(np.float32),
            "bias": generator.normal(size=96).astype(np.float32),
        },
    }


class Quadratic(Task):
    """Half the squared distance of the parameters from the mean of the batch's targets, but for a constant."""

    def init(self, key: jax.Array) -> Params:
        return jax.tree.map(jnp.asarray, large(np.random.default_rng(0)))

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        losses = [((leaf - batch["y"][:, 0].mean()) ** 2).sum() / 2 for leaf in jax.tree.leaves(params)]
        return sum(losses, jnp.float32(0)) / 1000, {}

    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        raise NotImplementedError

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        raise NotImplementedError


TARGETS = np.array([[3.0], [1.0], [2.0], [4.0]], np.float32)
FIRST_ORDER: dict[str, dict[str, Any]] = {
    "adamw": {"learning_rate": 0.01, "weight_decay": 0.3, "clip_norm": None},
    "adam": {"learning_rate": 0.01},
    "sgd": {"nesterov": True},
    "lion": {"learning_rate": 0.01, "weight_decay": 0.3},
    "adafactor": {"learning_rate": 0.01, "momentum": 0.5},
    "muon": {"weight_decay": 0.3, "adam_learning_rate": 0.01},
}
STEPS = 3


def quadratic(name: str, parallel: Any) -> Strategy:
    section = {"name": name, **FIRST_ORDER[name], "clip_norm": None}
    schedule = {"name": "constant", "warmup_steps": 2}
    keys = {"steps": 10, "batch_size": 4, "parallel": parallel, "schedule": schedule, "optimizer": section}
    config = Config.model_validate({"task": "regression", **keys})
    return make_strategy(
        config, Quadratic(config, load_dataset(config)), *make_optimizer(config, config.total_steps(1))
    )


@functools.cache
def trained(name: str, parallel: str = "single", fsdp: int = 1) -> tuple[Any, list[float]]:
    """Parameters after each step, and norms of the gradients; only the first step may compile."""
    one = quadratic(name, {"name": parallel, **({"mesh": {"fsdp": fsdp}} if fsdp > 1 else {})})
    state, history, norms = one.init(), [], []
    batch = one.shard({"y": TARGETS})
    before = 0
    for step in range(STEPS):
        state, metrics = one.step(state, batch)
        norms.append(metrics.read()["grad_norm"])
        assert step == 0 or compilations() == before, f"step {step + 1} was compiled anew"
        history.append(jax.tree.map(np.array, state.params))
        before = compilations()
    return history, norms


def by_optax(name: str) -> optax.GradientTransformation:
    """Return what the section of the config means, written with optax."""

    def rate(step: Any) -> Any:
        peak = {"adamw": 0.01, "adam": 0.01, "sgd": 0.1, "lion": 0.01, "adafactor": 0.01, "muon": 0.02}[name]
        return jnp.where(step == 0, peak / 2, peak)

    decays = {"wte": {"embedding": True}, "dense": {"kernel": True, "bias": False}}
    parts = {
        "adamw": lambda: optax.adamw(rate, 0.9, 0.95, 1e-8, weight_decay=0.3, mask=decays),
        "adam": lambda: optax.adam(rate, 0.9, 0.999, 1e-8),
        "sgd": lambda: optax.sgd(rate, 0.9, True),
        "lion": lambda: optax.lion(rate, 0.9, 0.99, weight_decay=0.3, mask=decays),
        "adafactor": lambda: optax.adafactor(rate, momentum=0.5),
        "muon": lambda: optax.partition(
            {
                "muon": optax.contrib.muon(rate, beta=0.95, weight_decay=0.3),
                "adam": optax.adamw(lambda step: rate(step) / 2, weight_decay=0.0, nesterov=True),
                "table": optax.adamw(lambda step: rate(step) / 2, weight_decay=0.3, nesterov=True),
            },
            {"wte": {"embedding": "table"}, "dense": {"kernel": "muon", "bias": "adam"}},
        ),
    }
    return parts[name]()


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_an_optimizer_is_that_of_optax(name: str) -> None:
    """Three steps with warm-up; weight decay of matrices only; muon for kernels, Adam for embeddings and biases."""
    transformation = by_optax(name)
    params: Any = jax.tree.map(jnp.asarray, large(np.random.default_rng(0)))
    state = transformation.init(params)
    found, norms = trained(name)

    @jax.jit
    def step(params: Any, state: Any) -> tuple[Any, Any, jax.Array]:
        gradient = jax.tree.map(lambda p: (p - TARGETS.mean()) / 1000, params)
        updates, state = transformation.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, optax.tree.norm(gradient)

    for after, norm in zip(found, norms, strict=True):
        params, state, expected = step(params, state)
        assert norm == pytest.approx(float(expected), rel=1e-5)
        assert_close(after, jax.tree.map(np.asarray, params), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_clip_norm_of_every_optimizer(name: str) -> None:
    """The update is that of a gradient scaled to this norm."""
    clipping, _ = optimizer({"name": name, **FIRST_ORDER[name], "clip_norm": 1e-4})
    free, _ = optimizer({"name": name, **FIRST_ORDER[name], "clip_norm": None})
    params = jax.tree.map(
        jnp.asarray, tree(lambda shape: np.random.default_rng(0).normal(size=shape).astype(np.float32))
    )
    scaled = jax.tree.map(lambda g: g * (1e-4 / optax.tree.norm(params)), params)
    twice: list[Any] = []
    for transformation, gradient in ((clipping, params), (free, scaled)):
        state = transformation.init(params)
        # The second gradient is small: to optimizers that take the size away, the clipped first one is not.
        first, state = transformation.update(gradient, state, params)
        second, _ = transformation.update(jax.tree.map(lambda g: -g / 2, scaled), state, params)
        twice += [first, second]
    assert_close(twice[0], twice[2])
    assert_close(twice[1], twice[3])


@pytest.mark.parametrize(
    ("name", "parallel", "fsdp"),
    [
        *((name, "jit", 2) for name in FIRST_ORDER),
        *((name, "explicit", 4) for name in ("adamw", "adam", "sgd", "lion")),
        *((name, "pmap", 1) for name in ("muon", "adafactor")),
    ],
)
def test_a_divided_state_is_optimized_as_a_whole_one(name: str, parallel: str, fsdp: int) -> None:
    """Three steps are those of one device."""
    expected, norms = trained(name)
    found, found_norms = trained(name, parallel, fsdp)
    assert found_norms == pytest.approx(norms, rel=1e-5)
    for after, whole in zip(found, expected, strict=True):
        assert_close(after, whole, rtol=1e-5, atol=1e-5)
