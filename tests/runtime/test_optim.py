"""Learning rates by step, and AdamW against plain numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from podrun.runtime.config import AdamW, Config, GPT2Model, Schedule
from podrun.runtime.models.gpt2 import GPT2
from podrun.runtime.optim import decay_mask, make_optimizer, make_schedule

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
        (Schedule(name="cosine"), cosine(0.8, 0, 9)),
        (Schedule(name="cosine", final=0.2), cosine(0.8, 0.2, 9)),
        (Schedule(name="cosine", warmup_steps=4, final=0.2), [0.2, 0.4, 0.6, *cosine(0.8, 0.2, 6)]),
        (Schedule(name="cosine", warmup_steps=9), [0.8 * n / 9 for n in range(1, 9)] + [0.8, 0]),
        (Schedule(name="linear"), linear(0.8, 0, 9)),
        (Schedule(name="linear", warmup_steps=1, final=0.2), linear(0.8, 0.2, 9)),
        (Schedule(name="linear", warmup_steps=2, final=0.4), [0.4, *linear(0.8, 0.4, 8)]),
        (Schedule(name="linear", final=0.8), [0.8] * 10),
        (Schedule(name="constant"), [0.8] * 10),
        (Schedule(name="constant", warmup_steps=4), [0.2, 0.4, 0.6] + [0.8] * 7),
    ],
    ids=lambda value: f"{value.name}-{value.warmup_steps}-{value.final}" if isinstance(value, Schedule) else "",
)
def test_schedule(schedule: Schedule, expected: list[float]) -> None:
    """The first of w warm-up steps has peak / w, the last has the peak, and the last step has `final`."""
    assert rates(schedule, 0.8, 10) == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_schedule_after_its_end(name: str) -> None:
    """The rate stays `final`: it never rises again."""
    curve = make_schedule(Schedule.model_validate({"name": name, "warmup_steps": 2, "final": 0.1}), 0.8, 10)
    assert [float(curve(step)) for step in (10, 11, 15, 1000)] == pytest.approx([0.1] * 4)


def test_one_step() -> None:
    """The shortest job has the full rate."""
    assert rates(Schedule(), 0.8, 1)[0] == pytest.approx(0.8)


# --- weight decay ---------------------------------------------------------------------------------------------------


def test_what_is_decayed_in_gpt2() -> None:
    """The kernels of both projections of attention and MLP, and nothing else."""
    module = GPT2(GPT2Model(layers=2, heads=2, width=8, context=4), 11, jnp.dtype("float32"))
    params = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    mask = flatten_dict(decay_mask(params), sep="/")
    assert mask.keys() == flatten_dict(params, sep="/").keys()
    layers = ("attn/c_attn", "attn/c_proj", "mlp/c_fc", "mlp/c_proj")
    assert {name for name, decayed in mask.items() if decayed} == {
        f"h_{i}/{n}/kernel" for i in range(2) for n in layers
    }


# --- AdamW ----------------------------------------------------------------------------------------------------------


def optimizer(section: dict[str, Any], **schedule: Any) -> tuple[optax.GradientTransformation, optax.Schedule]:
    keys = {"steps": 10, "batch_size": 1, "optimizer": section, "schedule": schedule}
    return make_optimizer(Config.model_validate(keys))


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
            decay = section.weight_decay if name.endswith("kernel") else 0.0
            p[name] = p[name] - float(rate(step)) * (m_hat / (np.sqrt(v_hat) + section.eps) + decay * p[name])
    return p


@pytest.mark.parametrize("clip_norm", [None, 0.5, 1000.0])
def test_adamw_is_that_of_plain_numpy(clip_norm: float | None) -> None:
    """Three steps with warm-up, decay of kernels only, and clipping off, at work, and out of reach."""
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
