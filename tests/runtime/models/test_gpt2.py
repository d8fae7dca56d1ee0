"""GPT-2: sizes, initialisation, and the numbers that it computes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from podrun.runtime.config.model import GPT2Model
from podrun.runtime.models.gpt2 import GPT2

from ...tiers import mostly_long

Array = np.ndarray[Any, Any]
Params = dict[str, Any]

VOCABULARY = 97
SECTION = GPT2Model(layers=2, heads=4, width=64, context=24)
TOKENS = np.random.default_rng(0).integers(VOCABULARY, size=(5, 24)).astype(np.int32)


def model(dtype: str = "float32", dropout: float = 0.0) -> GPT2:
    return GPT2(SECTION.model_copy(update={"dropout": dropout}), VOCABULARY, jnp.dtype(dtype))


@functools.cache
def initial(section: GPT2Model) -> Params:
    module = GPT2(section, VOCABULARY, jnp.dtype("float32"))
    found: Params = jax.jit(module.init)(jax.random.key(0), TOKENS)["params"]
    return found


@pytest.fixture
def params() -> Params:
    return initial(SECTION)


def leaves(params: Params) -> dict[str, Array]:
    """Arrays by name, as in "h_0/attn/c_attn/kernel"."""
    return {"/".join(path): np.asarray(leaf) for path, leaf in flatten_dict(params).items()}


@functools.cache
def compiled(dtype: str, dropout: float, deterministic: bool) -> Callable[..., jax.Array]:
    module = model(dtype, dropout)

    def apply(params: Params, tokens: jax.Array, *key: jax.Array) -> jax.Array:
        rngs = {"dropout": key[0]} if key else None
        logits: jax.Array = module.apply({"params": params}, tokens, deterministic, rngs=rngs)
        return logits

    return jax.jit(apply)


def logits(params: Params, tokens: Array = TOKENS, dtype: str = "float32", dropout: float = 0.0) -> Array:
    """Return the logits of a deterministic pass."""
    return np.asarray(compiled(dtype, dropout, True)(params, tokens))


def train_logits(params: Params, seed: int, dropout: float) -> Array:
    return np.asarray(compiled("float32", dropout, False)(params, TOKENS, jax.random.key(seed)))


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_parameter_counts_are_the_published_ones(preset: str, expected: int) -> None:
    """With the vocabulary of GPT-2, as in the weights that OpenAI released."""
    section = GPT2Model.model_validate({"preset": preset})
    module = GPT2(section, 50257, jnp.dtype("float32"))
    shapes = jax.eval_shape(module.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 8), jnp.int32))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == expected


def test_parameter_names_and_shapes(params: Params) -> None:
    """They are those of GPT-2; the output projection is the token embedding and has no array of its own."""
    block = {
        "ln_1/scale": (64,),
        "ln_1/bias": (64,),
        "attn/c_attn/kernel": (64, 192),
        "attn/c_attn/bias": (192,),
        "attn/c_proj/kernel": (64, 64),
        "attn/c_proj/bias": (64,),
        "ln_2/scale": (64,),
        "ln_2/bias": (64,),
        "mlp/c_fc/kernel": (64, 256),
        "mlp/c_fc/bias": (256,),
        "mlp/c_proj/kernel": (256, 64),
        "mlp/c_proj/bias": (64,),
    }
    expected: dict[str, tuple[int, ...]] = {f"h_{i}/{name}": shape for i in range(2) for name, shape in block.items()}
    expected |= {"wte/embedding": (97, 64), "wpe/embedding": (24, 64), "ln_f/scale": (64,), "ln_f/bias": (64,)}
    assert {name: leaf.shape for name, leaf in leaves(params).items()} == expected


# --- initialisation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [0.02, 0.1])
def test_initial_values(std: float) -> None:
    """Normal, of deviation 0.02 by default and smaller where a block adds; biases zero, LayerNorm scales one."""
    params = initial(SECTION if std == 0.02 else SECTION.model_copy(update={"initializer_range": std}))
    for name, leaf in leaves(params).items():
        kind = name.rpartition("/")[2]
        if kind == "bias":
            assert (leaf == 0).all(), name
        elif kind == "scale":
            assert (leaf == 1).all(), name
        else:
            expected = std / math.sqrt(2 * SECTION.layers) if "c_proj" in name else std
            # Four standard errors of the deviation and of the mean of so many normal numbers.
            assert leaf.std() == pytest.approx(expected, rel=4 / math.sqrt(2 * leaf.size)), name
            assert abs(leaf.mean()) < 4 * expected / math.sqrt(leaf.size), name


def test_no_two_layers_start_alike(params: Params) -> None:
    """Each array has random numbers of its own."""
    starts = [
        leaf.ravel()[:8].tobytes() for name, leaf in leaves(params).items() if not name.endswith(("bias", "scale"))
    ]
    assert len(set(starts)) == len(starts)


def test_first_loss(params: Params) -> None:
    """An untrained model is as good as a guess: ln(vocabulary)."""
    log_p = jax.nn.log_softmax(logits(params)[:, :-1])
    loss = -np.take_along_axis(np.asarray(log_p), TOKENS[:, 1:, None], axis=-1).mean()
    assert loss == pytest.approx(math.log(VOCABULARY), abs=0.1)


# --- computation ----------------------------------------------------------------------------------------------------


def reference(params: Params, tokens: Array) -> Array:
    """The forward pass of GPT-2 in plain numpy, float64, written after OpenAI's model.py."""
    p = {name: leaf.astype(np.float64) for name, leaf in leaves(params).items()}

    def norm(x: Array, name: str) -> Array:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * p[f"{name}/scale"] + p[f"{name}/bias"]

    def linear(x: Array, name: str) -> Array:
        return x @ p[f"{name}/kernel"] + p[f"{name}/bias"]

    def gelu(x: Array) -> Array:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def attention(x: Array, name: str) -> Array:
        length, width = x.shape
        qkv = linear(x, f"{name}/c_attn")
        query, key, value = qkv[:, :width], qkv[:, width : 2 * width], qkv[:, 2 * width :]
        size = width // SECTION.heads
        mixed = np.zeros_like(x)
        for head in range(SECTION.heads):
            part = slice(head * size, (head + 1) * size)
            for t in range(length):
                scores = key[: t + 1, part] @ query[t, part] / np.sqrt(size)
                weights = np.exp(scores - scores.max())
                mixed[t, part] = weights / weights.sum() @ value[: t + 1, part]
        return linear(mixed, f"{name}/c_proj")

    out = []
    for row in tokens:
        x = p["wte/embedding"][row] + p["wpe/embedding"][: len(row)]
        for i in range(SECTION.layers):
            x = x + attention(norm(x, f"h_{i}/ln_1"), f"h_{i}/attn")
            x = x + linear(gelu(linear(norm(x, f"h_{i}/ln_2"), f"h_{i}/mlp/c_fc")), f"h_{i}/mlp/c_proj")
        out.append(norm(x, "ln_f") @ p["wte/embedding"].T)
    return np.stack(out)


def test_logits_are_those_of_a_plain_numpy_gpt2(params: Params) -> None:
    """All parameters count: they are moved away from their initial zeros and ones first, and made larger."""
    generator = np.random.default_rng(1)
    moved = jax.tree.map(lambda x: np.asarray(3 * x + generator.normal(0, 0.1, x.shape), np.float32), params)
    found, expected = logits(moved), reference(moved, TOKENS)
    assert found.shape == (5, 24, VOCABULARY)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("at", [0, 1, 12, 23])
def test_causality(params: Params, at: int) -> None:
    """Another token changes no logits before its place, and those at it and after it."""
    changed = TOKENS.copy()
    changed[:, at] = (changed[:, at] + 1) % VOCABULARY
    before, after = logits(params), logits(params, changed)
    np.testing.assert_array_equal(before[:, :at], after[:, :at])
    assert (np.abs(before[:, at:] - after[:, at:]).max(axis=(0, 2)) > 1e-6).all()


def test_a_shorter_sequence(params: Params) -> None:
    """It has the logits that it has as the beginning of a longer one."""
    np.testing.assert_allclose(logits(params, TOKENS[:, :7]), logits(params)[:, :7], rtol=1e-4, atol=1e-5)


def test_bfloat16(params: Params) -> None:
    """Parameters stay float32 and logits are float32, but what is between has the precision of bfloat16."""
    half = model("bfloat16")
    shapes = jax.eval_shape(half.init, jax.random.key(0), TOKENS)
    gradients = jax.eval_shape(jax.grad(lambda p: half.apply({"params": p}, TOKENS).sum()), params)
    assert {leaf.dtype for leaf in jax.tree.leaves((shapes, gradients))} == {jnp.dtype("float32")}
    found, exact = logits(params, dtype="bfloat16"), logits(params)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, found.astype(jnp.bfloat16).astype(np.float32))
    assert 0 < np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


@functools.cache
def trained(remat: str) -> tuple[Params, jax.Array, Params]:
    """Return the initial parameters, the loss and the gradients."""
    section = SECTION.model_copy(update={"remat": remat, "dropout": 0.3})
    module, rngs = GPT2(section, VOCABULARY, jnp.dtype("float32")), {"dropout": jax.random.key(1)}

    def loss(params: Params) -> jax.Array:
        return (module.apply({"params": params}, TOKENS, False, rngs=rngs) ** 2).mean()

    params = initial(section)
    return params, *jax.jit(jax.value_and_grad(loss))(params)


@pytest.mark.parametrize("remat", mostly_long(("block", "dots"), lambda number, _: number == 1))
def test_remat(remat: str) -> None:
    """Names, initial values, losses and gradients are those without; the key of dropout is the same in both passes."""
    expected, found = trained("none"), trained(remat)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found[0], expected[0])
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), found[1:], expected[1:])


# --- dropout --------------------------------------------------------------------------------------------------------


def test_dropout(params: Params) -> None:
    """Equal keys give equal logits, another key others; a deterministic pass needs no key and drops nothing."""
    dropped = train_logits(params, 1, 0.5)
    np.testing.assert_array_equal(dropped, train_logits(params, 1, 0.5))
    assert (dropped != train_logits(params, 2, 0.5)).any()
    kept = logits(params, dropout=0.5)
    np.testing.assert_array_equal(kept, logits(params))
    assert (dropped != kept).any()


def test_without_dropout_the_key_does_not_count(params: Params) -> None:
    """A training pass is then the same as a deterministic one."""
    np.testing.assert_array_equal(train_logits(params, 1, 0.0), logits(params))
