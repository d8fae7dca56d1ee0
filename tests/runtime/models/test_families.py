"""Model decoder against the published families: logits, loss and gradients are those of transformers.

The golden files are made by golden/make.py, which needs torch.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.config.model import DecoderModel
from podrun.runtime.contract import UserError
from podrun.runtime.models.decoder import Decoder, rope_frequencies, rotation
from podrun.runtime.models.families import _FILES, family_of
from podrun.runtime.models.families.base import rope, rope_section

from .published import VOCABULARY, closely, logits, loss, params_from

Array = np.ndarray[Any, Any]
Params = dict[str, Any]

GOLDEN = Path(__file__).parent / "golden"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")


class Golden(NamedTuple):
    """A tiny model of a family, and what transformers computes with it."""

    config: dict[str, Any]
    section: DecoderModel
    weights: dict[str, Array]
    params: Params
    tokens: Array
    logits: Array
    loss: Array
    gradients: Params


@functools.cache
def golden(name: str) -> Golden:
    config = json.loads((GOLDEN / f"{name}.json").read_text())
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        values = dict(arrays)
    family = family_of(config)
    section = family.section(config)

    def of(kind: str) -> dict[str, Array]:
        start = f"{kind}:"
        return {k.removeprefix(start): v.astype(np.float32) for k, v in values.items() if k.startswith(start)}

    weights, gradients = of("weight"), params_from(family, section, of("gradient"))
    params = params_from(family, section, weights)
    return Golden(config, section, weights, params, values["tokens"], values["logits"], values["loss"], gradients)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_loss_and_gradients(name: str) -> None:
    one = golden(name)
    train = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    (mean, found), gradients = train(one.params, one.section, one.tokens)
    closely(found, one.logits)
    closely(mean, one.loss)
    for (path, gradient), expected in zip(
        jax.tree.leaves_with_path(gradients), jax.tree.leaves(one.gradients), strict=True
    ):
        closely(gradient, expected, jax.tree_util.keystr(path))


MATTERS: dict[str, dict[str, Any]] = {
    "llama": {
        "rope": {"theta": 500.0},
        "tied_head": True,
        "norm_epsilon": 0.1,
        "mlp": "geglu",
    },
    "mistral": {"window": 6, "layer_types": ["full", "sliding"]},
    "qwen2": {"rope": {"theta": 1e4}},
    "qwen3": {"qk_norm": False, "attention_scale": 0.5},
    "gemma2": {
        "norm": "rms",
        "post_norms": False,
        "attention_scale": None,
        "attention_soft_cap": None,
        "logit_soft_cap": None,
        "scale_embedding": False,
        "mlp": "swiglu",
        "layer_types": ["full", "sliding"],
    },
    "gpt2": {"norm_epsilon": 0.1},
    "gemma3": {"sliding_rope": None, "rope": {"theta": 1000.0}, "qk_norm": False, "window": 3},
}


def only(params: Params, shapes: Params) -> Params:
    """Return those of the parameters that a model has."""
    return {k: only(params[k], v) if isinstance(v, dict) else params[k] for k, v in shapes.items()}


@pytest.mark.long  # it is about the golden files, which hardly ever change
@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in MATTERS.items() for key in keys])
def test_every_part_matters(name: str, key: str) -> None:
    """With another value of the key the logits are others, so the golden files would show a mistake in it."""
    one = golden(name)
    changed = DecoderModel.model_validate({**one.section.model_dump(), key: MATTERS[name][key]})
    # Other kinds of layers are stacked in another way.
    stacked_as = changed.model_copy(update={"tied_head": one.section.tied_head})
    module = Decoder(changed, VOCABULARY, jnp.dtype("float32"))
    shapes = jax.eval_shape(module.init, jax.random.key(0), one.tokens)["params"]
    params = only(params_from(family_of(one.config), stacked_as, one.weights), shapes)
    found = jax.jit(logits, static_argnums=0)(changed, params, one.tokens)
    assert np.abs(found - one.logits).max() > 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_names_and_shapes(name: str) -> None:
    """A model of the section has just the arrays of the family's files."""
    one = golden(name)
    module = Decoder(one.section, VOCABULARY, jnp.dtype("float32"))
    made = jax.eval_shape(module.init, jax.random.key(0), one.tokens)["params"]
    assert jax.tree.map(lambda leaf: leaf.shape, made) == jax.tree.map(lambda leaf: leaf.shape, one.params)
    names = family_of(one.config).names
    assert len(set(names.values())) == len(names)


def test_arrays_that_do_not_fit() -> None:
    """A missing array, and one without a place, are named."""
    one = golden("llama")
    family = family_of(one.config)
    arrays = {"model.norm.weight": np.ones(16), "model.layers.7.mlp.up_proj.weight": np.ones((24, 16))}
    with pytest.raises(
        UserError, match=r"20 arrays are missing: lm_head\.weight, model\.embed_tokens\.weight, .*, \.\.\."
    ):
        params_from(family, one.section, arrays)
    complete = {theirs.format(i): np.ones((2, 2)) for theirs in family.names for i in range(2 if "{}" in theirs else 1)}
    with pytest.raises(UserError, match=r"1 arrays have no place: model\.layers\.7\.mlp\.up_proj\.weight$"):
        params_from(family, one.section, {**complete, **arrays})


# --- config.json ---


def older(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json as transformers 4 wrote it."""
    given = {**config}
    ropes = given.pop("rope_parameters")
    full = {**ropes.get("full_attention", ropes)}
    given["rope_theta"] = full.pop("rope_theta")
    if "sliding_attention" in ropes:
        given["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    given["rope_scaling"] = None if full == {"rope_type": "default"} else {"type": full.pop("rope_type"), **full}
    return given


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gpt2"])
def test_a_config_of_transformers_4(name: str) -> None:
    one = golden(name)
    assert family_of(one.config).section(older(one.config)) == one.section


def test_a_config_with_few_keys() -> None:
    """Keys that older files lack have the family's values."""
    rare = ("layer_types", "head_dim", "tie_word_embeddings", "rope_parameters", "attn_logit_softcapping")
    for name, expected in {
        "mistral": {"layer_types": ("sliding", "sliding"), "head_size": None, "tied_head": False},
        "qwen2": {"layer_types": ("full", "full"), "window": None, "tied_head": False},
        "gemma2": {"layer_types": ("sliding", "full"), "head_size": 256, "attention_soft_cap": 50.0, "tied_head": True},
        "gemma3": {"layer_types": ("sliding", "sliding"), "attention_soft_cap": None, "tied_head": True},
    }.items():
        config = {key: value for key, value in golden(name).config.items() if key not in rare}
        section = family_of(config).section(config)
        assert {key: getattr(section, key) for key in expected} == expected, name
    assert (section.rope.theta, section.sliding_rope and section.sliding_rope.theta) == (1e6, 1e4)


def test_upper_layers_of_qwen_slide() -> None:
    config = {**golden("qwen2").config, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    del config["layer_types"]
    section = family_of(config).section(config)
    assert (section.layer_types, section.window) == (("full", "sliding"), 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, r"model_type is 'mamba'; model decoder can be llama, mistral, .*"),
        ({"hidden_act": "relu"}, r"hidden_act is 'relu', but model decoder has only 'silu' in this family"),
        ({"attention_bias": True}, r"attention_bias is True, but model decoder has only False"),
        ({"hidden_size": None}, r"hidden_size is missing; the file must be complete"),
        ({"rope_parameters": {"rope_type": "longrope"}}, r"RoPE of type 'longrope', which model decoder does"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}},
            r"RoPE of type yarn has mscale, which",
        ),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000, expected at most 10,000"),
        ({"vocab_size": 10**30}, r"vocab_size is 1,0.*, expected at most 100,000,000"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0\.5"),
        ({"rope_scaling": {"type": "longrope"}}, r"RoPE of type 'longrope', which model decoder does"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, r"partial_rotary_factor is 0\.5"),
    ],
)
def test_a_model_that_the_decoder_cannot_be(changes: dict[str, Any], message: str) -> None:
    config = {**golden("llama").config, **changes}
    with pytest.raises(UserError, match=message):
        family_of(config).section(config)


YARN = {"type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5}, {"theta": 5e5}),
        ("llama", {"rope_scaling": YARN}, {"name": "yarn", "factor": 4.0, "theta": 1e4}),
        (
            "llama",
            {"rope_scaling": {**YARN, "original_max_position_embeddings": 9}, "original_max_position_embeddings": 16},
            {"name": "yarn", "original_context": 16},
        ),
        ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, {"name": "linear", "factor": 8.0}),
    ],
)
def test_rope_of_a_file_with_keys_of_both_versions(
    name: str, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    """The keys have the order that they have in transformers 5."""
    config = {**golden(name).config, **changes}
    found = family_of(config).section(config).rope
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize("changes", [{"rope_theta": 0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 0}}])
def test_a_theta_of_zero_is_refused(changes: dict[str, Any]) -> None:
    config = {**golden("llama").config, "rope_parameters": None, **changes}
    with pytest.raises((UserError, ValueError), match="theta"):
        family_of(config).section(config)


def test_a_rope_of_gemma_3_for_all_layers() -> None:
    config = {**golden("gemma3").config, "rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}}
    with pytest.raises(
        UserError, match="rope_parameters has factor, rope_theta, rope_type; in this family it has full"
    ):
        family_of(config).section(config)


def test_too_few_layer_types() -> None:
    config = {**golden("gemma2").config, "layer_types": ["full_attention"]}
    with pytest.raises(UserError, match="layer_types has 1 layers, but num_hidden_layers is 2"):
        family_of(config).section(config)


def test_every_family_is_tested() -> None:
    assert set(_FILES.values()) == set(FAMILIES)


# --- RoPE ---

ROPES = json.loads((GOLDEN / "rope.json").read_text())


@pytest.mark.parametrize("name", ROPES)
def test_rope_frequencies(name: str) -> None:
    """Those of transformers, for a sequence that is longer than the model's context."""
    row = ROPES[name]
    config = row["config"]
    values = {"layers": 1, "heads": 4, "width": 64, "rope": rope(config)}
    found = DecoderModel.model_validate(values).rope
    frequencies = rope_frequencies(found, config["head_dim"], row["length"])
    np.testing.assert_allclose(frequencies, row["frequencies"], rtol=1e-6)
    turn = rotation(found, config["head_dim"], jnp.arange(8), 8)
    np.testing.assert_allclose(turn.cos**2 + turn.sin**2, row["factor"] ** 2, rtol=1e-6)
    default = rope_frequencies(rope_default(), config["head_dim"], row["length"])
    assert np.abs(frequencies / default - 1).max() > 0.1


def rope_default() -> Any:
    return DecoderModel.model_validate({"rope": rope_section({}, {}, 10_000.0)}).rope


def test_dynamic_rope_within_its_context_is_the_default() -> None:
    config = ROPES["dynamic"]["config"]
    found = DecoderModel.model_validate({"rope": rope(config)}).rope
    np.testing.assert_allclose(rope_frequencies(found, 16, 2048), rope_frequencies(rope_default(), 16, 2048))
