"""Each dropout of GPT-2 drops: where none is left out, and none of them stands for another."""

from __future__ import annotations

import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.models import gpt2 as module
from podrun.runtime.models.gpt2 import GPT2

CONFIG: Any = Config.model_validate(
    {"steps": 1, "batch_size": 1, "model": {"layers": 2, "heads": 2, "width": 8, "context": 6, "dropout": 0.5}}
)


class Noted(nn.Module):
    """Takes the place of a dropout, and notes where it stands and what it is given."""

    rate: float

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        SEEN.append((self.path[:-1], x.shape, self.rate, deterministic))
        return x


SEEN: list[tuple[Any, tuple[int, ...], float, bool]] = []


@pytest.mark.parametrize("deterministic", [True, False])
def test_every_place_has_its_dropout(monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    """After the embedding, on the attention's weights, and after the attention and the MLP of each block, as in GPT-2."""
    monkeypatch.setattr(module.nn, "Dropout", Noted)
    SEEN.clear()
    model = GPT2(CONFIG.model, 11, jnp.dtype("float32"))
    model.init(jax.random.key(0), np.zeros((3, 6), np.int32), deterministic)
    places = sorted((tuple(path), shape) for path, shape, _, _ in SEEN)
    blocks = [
        place
        for block in ("h_0", "h_1")
        for place in (((block, "attn"), (3, 2, 6, 6)), ((block, "attn"), (3, 6, 8)), ((block, "mlp"), (3, 6, 8)))
    ]
    assert places == sorted([((), (3, 6, 8)), *blocks])
    assert {(rate, flag) for _, _, rate, flag in SEEN} == {(0.5, deterministic)}


def test_no_token_sees_a_later_one() -> None:
    """Not even a little: the mask is applied in float32, before the softmax, whatever the precision of the rest."""
    for dtype in ("float32", "bfloat16"):
        model = GPT2(CONFIG.model, 11, jnp.dtype(dtype))
        tokens = np.arange(6, dtype=np.int32)[None]
        params = model.init(jax.random.key(0), tokens)
        changed = tokens.copy()
        changed[0, 3:] += 4
        before, after = (np.asarray(model.apply(params, t)) for t in (tokens, changed))
        np.testing.assert_array_equal(before[0, :3], after[0, :3])
        assert (before[0, 3:] != after[0, 3:]).any()


def test_the_softmax_is_computed_in_float32() -> None:
    """In bfloat16 the weights of a long context would not add up to one."""
    model = GPT2(CONFIG.model, 11, jnp.dtype("bfloat16"))
    tokens = np.zeros((1, 6), np.int32)
    params = model.init(jax.random.key(0), tokens)
    text = str(jax.make_jaxpr(model.apply)(params, tokens))
    exponentials = re.findall(r":(\w+)\[[^\]]*\] = exp\b", text)
    assert exponentials and set(exponentials) == {"f32"}
