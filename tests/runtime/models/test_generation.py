"""Sequences that a model continues: with a KV cache the same as without, and as transformers continues them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.config.model import DecoderModel
from podrun.runtime.models import generation
from podrun.runtime.models.decoder import Decoder
from podrun.runtime.models.families import family_of
from podrun.runtime.models.generation import Sampling, Writer, draw, writer_of
from podrun.runtime.models.linen import Linen

from ...tiers import mostly_long
from .published import FAMILIES, arrays_of, config_of, greedy_of, params_from

GREEDY = Sampling(temperature=0)


def written(
    writer: Writer, params: Any, tokens: Any, lengths: list[int], count: int, sampling: Sampling = GREEDY
) -> Any:
    """Return the tokens that are written after the prompts, int32[B, count]."""
    space = tokens.shape[1] + count
    state = jax.jit(partial(writer.read, space=space))(params, jnp.asarray(tokens), jnp.array(lengths))
    keys = jax.random.split(jax.random.key(1), len(tokens))
    allowed = jnp.ones(state.logits.shape[-1], bool)
    step = jax.jit(lambda state: writer.write(params, state, sampling, keys, allowed, count))
    return np.asarray(step(state)[1])


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_as_transformers(name: str) -> None:
    config = config_of(name)
    family = family_of(config)
    section = family.section(config)
    params = params_from(family, section, arrays_of(name))
    tokens, expected = greedy_of(name)
    model = Linen("decoder", Decoder(section, config["vocab_size"], jnp.dtype("float32")))
    found = written(writer_of(model), params, tokens, [tokens.shape[1]] * len(tokens), expected.shape[1])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "keys",
    [
        {"layer_types": ("sliding", "sliding", "full"), "window": 4, "layers": 3, "kv_heads": 2},
        {"positions": "learned", "norm": "layer", "mlp": "gelu", "bias": "all", "tied_head": False},
    ],
    ids=["windows", "learned"],
)
def test_the_cache_changes_nothing(keys: dict[str, Any]) -> None:
    """Prompts of several lengths at once; equal keys draw the same from equal logits."""
    section = DecoderModel.model_validate({"layers": 2, "width": 16, "heads": 4, "context": 32, **keys})
    model = Linen("decoder", Decoder(section, 40, jnp.dtype("float32")))
    params, _ = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 32), jnp.int32))
    params = jax.tree.map(lambda x: 8 * x if x.ndim > 2 else x, params)  # the texts would be dull otherwise
    tokens, lengths = jax.random.randint(jax.random.key(2), (3, 8), 0, 40), [8, 3, 5]
    sampling = Sampling(1.2, top_k=20, top_p=0.9, min_p=0.02)
    cached = written(writer_of(model), params, tokens, lengths, 20, sampling)
    again = written(generation._Again(model), params, tokens, lengths, 20, sampling)
    np.testing.assert_array_equal(cached, again)
    assert len(np.unique(cached)) > 3


@pytest.mark.parametrize("context", mostly_long((16, 32), lambda _, context: context == 32))
def test_a_dynamic_rope_turns_by_the_context(context: int) -> None:
    """Logits are those of a sequence of the whole context, as in training, whatever space the text may take."""
    keys = {"layers": 2, "width": 16, "heads": 4, "context": context}
    rope = {"name": "dynamic", "factor": 4.0, "original_context": 16}
    section = DecoderModel.model_validate({**keys, "rope": rope})
    model = Linen("decoder", Decoder(section, 40, jnp.dtype("float32")))
    params, _ = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, context), jnp.int32))
    params = jax.tree.map(lambda x: 8 * x if x.ndim > 2 else x, params)
    tokens, lengths = jax.random.randint(jax.random.key(2), (3, 8), 0, 40), jnp.array([8, 3, 5])
    whole = jnp.zeros((3, context), jnp.int32).at[:, :8].set(tokens)
    expected = model(params, whole)[jnp.arange(3), lengths - 1]
    for space in (12, 48):
        logits = writer_of(model).read(params, tokens, lengths, space).logits
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


PROBABILITIES = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        (Sampling(), 5),
        (Sampling(temperature=0), 1),
        (Sampling(temperature=1e-320), 1),
        (Sampling(top_k=2), 2),
        (Sampling(top_k=9), 5),
        (Sampling(top_p=0.69), 2),
        (Sampling(top_p=0.71), 3),
        (Sampling(top_p=1e-6), 1),
        (Sampling(min_p=0.3), 3),
        (Sampling(top_k=4, top_p=0.8, min_p=0.7), 2),
    ],
)
def test_what_may_be_drawn(sampling: Sampling, left: int) -> None:
    """Tokens that are left out are never drawn, and the others as often as their probabilities say."""
    draws = 4000
    logits = jnp.broadcast_to(jnp.log(jnp.array([*PROBABILITIES[::-1]])), (draws, 5))
    drawn = np.asarray(jax.jit(partial(draw, sampling))(logits, jax.random.split(jax.random.key(0), draws)))
    shares = np.bincount(4 - drawn, minlength=5) / draws
    expected = np.where(np.arange(5) < left, PROBABILITIES, 0)
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.04)
    assert (shares[left:] == 0).all()
