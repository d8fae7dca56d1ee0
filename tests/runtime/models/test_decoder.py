"""Model decoder: its parts, and what its section refuses. test_families compares it with published models."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from podrun.runtime.config import Config
from podrun.runtime.config.model import DecoderModel, GPT2Model
from podrun.runtime.devices import Devices
from podrun.runtime.models.decoder import Decoder
from podrun.runtime.models.families.base import place_of
from podrun.runtime.models.gpt2 import GPT2
from podrun.runtime.models.layers import with_loop
from podrun.runtime.weights import Role, weights

from ...tiers import mostly_long

Array = np.ndarray[Any, Any]
Params = dict[str, Any]

VOCABULARY = 29
SIZES: dict[str, Any] = {"layers": 2, "heads": 4, "width": 16, "context": 12}
TOKENS = np.random.default_rng(0).integers(VOCABULARY, size=(2, 12)).astype(np.int32)


def decoder(dtype: str = "float32", **keys: Any) -> Decoder:
    return Decoder(DecoderModel.model_validate({**SIZES, **keys}), VOCABULARY, jnp.dtype(dtype))


def initial(model: Any) -> Params:
    """Return random parameters, drawn by numpy: compiling the model's own `init` takes as long as compiling the model."""
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS)["params"]
    params: Params = jax.tree.map(lambda leaf: random.normal(0, 0.3, leaf.shape).astype(leaf.dtype), shapes)
    return params


@pytest.mark.parametrize(
    "keys",
    mostly_long(
        ({}, {"remat": "block", "dropout": 0.2}, {"layers": 4, "layer_types": ["sliding", "full"]}),
        lambda number, _: number > 0,
    ),
)
def test_layers_without_a_loop(keys: dict[str, Any]) -> None:
    """Logits and gradients are those of the loop, with the same parameters; with remat, blocks are computed again as well."""
    keys = {"window": 4, **keys} if "layer_types" in keys else keys
    params = initial(decoder(**keys))

    def loss(model: Decoder, params: Params) -> jax.Array:
        dropout = {"rngs": {"dropout": jax.random.key(1)}} if "dropout" in keys else {}
        return jnp.sin(model.apply({"params": params}, TOKENS, not dropout, **dropout)).sum()

    programs = [jax.jit(jax.value_and_grad(partial(loss, decoder(scan_layers=loop, **keys)))) for loop in (True, False)]
    (ours, gradients), (theirs, likes) = (program(params) for program in programs)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), gradients, likes)
    loop, none = (program.lower(params).as_text() for program in programs)
    assert loop.count("stablehlo.while") >= none.count("stablehlo.while") + 2  # forward and backward
    assert ("optimization_barrier" in none) == ("remat" in keys)  # without it XLA would not compute blocks again


@pytest.mark.parametrize(
    ("platform", "keys", "parallel", "in_loop"),
    [
        ("cuda", {}, "pmap", False),
        ("cuda", {}, {"name": "jit"}, False),
        ("cuda", {"remat": "block"}, "pmap", True),
        ("cuda", {}, {"name": "jit", "mesh": {"fsdp": 4}}, True),
        ("cuda", {"scan_layers": True}, "pmap", True),
        ("tpu", {}, "pmap", True),
        ("cpu", {}, "pmap", True),
        ("cpu", {"scan_layers": False}, "pmap", False),
    ],
)
def test_gpus_have_no_loop(platform: str, keys: dict[str, Any], parallel: Any, in_loop: bool) -> None:
    device: Any = SimpleNamespace(platform=platform, device_kind="x")
    model = {"name": "decoder", **SIZES, **keys}
    config = Config.model_validate({"steps": 1, "batch_size": 4, "model": model, "parallel": parallel})
    assert with_loop(config, Devices((device,))).model.scan_layers is in_loop  # type: ignore[union-attr]


def test_gpt2_is_a_decoder() -> None:
    """With learned positions, LayerNorm, GELU and biases, and GPT-2's parameters under other names."""
    gpt2 = GPT2(GPT2Model(**SIZES), VOCABULARY, jnp.dtype("float32"))
    random = np.random.default_rng(1)
    theirs = jax.tree.map(lambda x: np.float32(x + random.normal(0, 0.2, x.shape)), initial(gpt2))
    ours: Params = {"embed": theirs["wte"], "positions": theirs["wpe"], "final_norm": theirs["ln_f"]}
    blocks = []
    for i in range(2):
        block = theirs[f"h_{i}"]
        query, key, value = (
            {"kernel": kernel, "bias": bias}
            for kernel, bias in zip(
                np.split(block["attn"]["c_attn"]["kernel"], 3, axis=1),
                np.split(block["attn"]["c_attn"]["bias"], 3),
                strict=True,
            )
        )
        blocks.append(
            {
                "attn_norm": block["ln_1"],
                "attn": {"q": query, "k": key, "v": value, "o": block["attn"]["c_proj"]},
                "mlp_norm": block["ln_2"],
                "mlp": {"up": block["mlp"]["c_fc"], "down": block["mlp"]["c_proj"]},
            }
        )
    ours["layers"] = {"block_0": jax.tree.map(lambda *each: np.stack(each), *blocks)}
    model = decoder(positions="learned", norm="layer", norm_epsilon=1e-5, mlp="gelu", bias="all")
    found = jax.jit(model.apply)({"params": ours}, TOKENS)
    expected = jax.jit(gpt2.apply)({"params": theirs}, TOKENS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_hidden_and_head() -> None:
    """The head takes what `hidden` returns, or a part of it, and both are the whole model."""
    model = decoder(tied_head=False, logit_soft_cap=3)
    params = {"params": initial(model)}
    hidden = jax.jit(partial(model.apply, method="hidden"))(params, TOKENS)
    assert hidden.shape == (2, 12, 16)
    logits = np.asarray(jax.jit(model.apply)(params, TOKENS))
    assert logits.shape == (2, 12, VOCABULARY)
    part = jax.jit(partial(model.apply, method="head"))(params, hidden[:, 3:7])
    np.testing.assert_allclose(part, logits[:, 3:7], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [1, 4])
def test_a_token_is_seen_from_its_window(window: int) -> None:
    """Another token changes the logits of one sliding layer at its place and `window` - 1 after it, and no others."""
    model = decoder(layers=1, layer_types=["sliding"], window=window)
    params = {"params": initial(model)}
    apply = jax.jit(model.apply)
    changed = TOKENS.copy()
    changed[:, 5] = (changed[:, 5] + 1) % VOCABULARY
    difference = np.abs(apply(params, TOKENS) - apply(params, changed)).max(axis=(0, 2))
    assert [place for place in range(12) if difference[place] > 0] == list(range(5, 5 + window))


def test_bfloat16() -> None:
    """Parameters stay float32 and logits are float32, but what is between has the precision of bfloat16."""
    half = decoder("bfloat16", qk_norm=True, scale_embedding=True)
    params = initial(half)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    hidden = jax.eval_shape(lambda: half.apply({"params": params}, TOKENS, method="hidden"))
    assert hidden.dtype == jnp.bfloat16
    found = jax.jit(half.apply)({"params": params}, TOKENS)
    exact = jax.jit(decoder(qk_norm=True, scale_embedding=True).apply)({"params": params}, TOKENS)
    assert found.dtype == np.float32
    assert 0 < np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


def test_dropout() -> None:
    """Equal keys give equal logits, another key others; a deterministic pass needs no key and drops nothing."""
    model = decoder(dropout=0.5)
    params = {"params": initial(model)}
    apply = jax.jit(lambda key: model.apply(params, TOKENS, False, rngs={"dropout": key}))
    first, again, other = (np.asarray(apply(jax.random.key(seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(jax.jit(model.apply)(params, TOKENS), jax.jit(decoder().apply)(params, TOKENS))


@pytest.mark.parametrize(
    ("layers", "types", "period"),
    [
        (4, ["full"], 1),
        (4, ["sliding", "sliding"], 1),
        (4, ["sliding", "full"], 2),
        (12, ["sliding"] * 5 + ["full"], 6),
        (7, ["sliding"] * 5 + ["full"], 7),
    ],
)
def test_layers_of_one_kind_are_stacked(layers: int, types: list[str], period: int) -> None:
    """One stack for each place in the shortest pattern that fits in evenly, so that a published layer has a place."""
    model = decoder(layers=layers, layer_types=types, window=3 if "sliding" in types else None)
    stacks = jax.eval_shape(model.init, jax.random.key(0), TOKENS)["params"]["layers"]
    assert [*stacks] == [f"block_{i}" for i in range(period)]
    assert {leaf.shape[0] for leaf in jax.tree.leaves(stacks)} == {layers // period}
    places = {place_of(model.config, layer, "layers_{}.attn.q.kernel") for layer in range(layers)}
    assert len(places) == layers
    assert place_of(model.config, layers - 1, "layers_{}.attn.q.kernel") == (
        ("layers", f"block_{period - 1}", "attn", "q", "kernel"),
        layers // period - 1,
    )


@pytest.mark.parametrize("remat", mostly_long(("block", "dots"), lambda number, _: number == 0))
def test_remat(remat: str) -> None:
    """Losses and gradients are those without, whether layers are alike or not; dropout is the same in both passes."""

    keys = {"layers": 4, "dropout": 0.3, "layer_types": ["sliding", "full"], "window": 3}
    params = initial(decoder(**keys))

    def trained(remat: str) -> Any:
        model, rngs = decoder(remat=remat, **keys), {"dropout": jax.random.key(1)}

        def loss(params: Params) -> jax.Array:
            return (model.apply({"params": params}, TOKENS, False, rngs=rngs) ** 2).mean()

        return jax.jit(jax.value_and_grad(loss))(params)

    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8), trained(remat), trained("none"))


def test_roles_of_parameters() -> None:
    """Weight decay and Muon know norms, biases, embedding and head by their names."""
    types = {"layer_types": ["full", "sliding"], "window": 3}  # a single layer of each kind, stacked
    parts = {"bias": "all", "norm": "layer", "qk_norm": True, "post_norms": True, "tied_head": False}
    model = decoder(positions="learned", **types, **parts)
    found = {leaf.name: leaf for leaf in jax.tree.leaves(weights(initial(model), model.stacked))}
    roles = {name: leaf.role for name, leaf in found.items()}
    assert {name for name, role in roles.items() if role == Role.EMBEDDING} == {
        "embed.embedding",
        "positions.embedding",
    }
    assert {name for name, role in roles.items() if role == Role.HEAD} == {"lm_head.kernel"}
    matrices = {f"layers.block_{i}.attn.{m}.kernel" for i in (0, 1) for m in ("q", "k", "v", "o")}
    matrices |= {f"layers.block_{i}.mlp.{m}.kernel" for i in (0, 1) for m in ("gate", "up", "down")}
    assert {name for name, leaf in found.items() if leaf.is_hidden_matrix} == matrices
    assert {name for name, leaf in found.items() if not leaf.is_decayed} == {
        name for name in found if name.endswith((".bias", ".scale"))
    }


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kv_heads": 3}, "heads 4 is not divisible by kv_heads 3; kv_heads may be 1, 2, 4"),
        ({"width": 18}, "width 18 is not divisible by heads 4; the nearest that are: 16 or 20; or give head_size"),
        ({"width": 12}, "RoPE turns pairs, but the size of a head is 3: give an even head_size, or positions: learned"),
        ({"layer_types": ["full"] * 3}, "layer_types has 3 layers, but layers is 2"),
        ({"layer_types": ["sliding"]}, "layer_types has sliding layers, so give window, in tokens"),
        ({"window": 4}, "window 4 is for sliding layers, but layer_types has none; add layer_types: [sliding]"),
        ({"positions": "learned", "rope": {"theta": 5}}, "positions: learned has no rotary positions; remove rope and"),
        ({"sliding_rope": {"theta": 5}}, "sliding_rope is for sliding layers, but layer_types has none; remove it"),
        ({"rope": {"name": "llama3", "factor": 8}}, "original_context"),
        ({"rope": {"name": "linear", "factor": 0.5}}, "greater than or equal to 1"),
        ({"rope": {"name": "longrope"}}, "must be one of default, linear, dynamic, yarn, llama3"),
        (
            {"rope": {"name": "llama3", "factor": 8, "original_context": 9, "low_freq_factor": 5}},
            "high_freq_factor 4 must be above low_freq_factor 5",
        ),
        ({"rope": {"name": "dynamic", "factor": 2, "original_context": 9}, "head_size": 2}, "from 4"),
    ],
)
def test_values_that_do_not_fit(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DecoderModel.model_validate({**SIZES, **keys})
    assert message in str(caught.value)


def test_all_mistakes_are_told() -> None:
    with pytest.raises(ValidationError) as caught:
        DecoderModel.model_validate({**SIZES, "kv_heads": 3, "window": 4})
    assert "kv_heads may be" in str(caught.value) and "window 4 is for" in str(caught.value)
