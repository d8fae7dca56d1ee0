"""Documents in one row: each is computed as if it were alone, by every model and kernel that takes them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.packing import PackedRows, pack
from podrun.runtime.data.windows import Source
from podrun.runtime.models.attention import Scores, attend, by_splash, positions_in
from podrun.runtime.tasks import make_task

from ...tiers import mostly_long

CONTEXT, VOCABULARY = 32, 64
SIZES = [9, 14, 4, 6, 20, 12, 5, 40, 33, 2]
"""One of them is longer than a row."""

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"name": "gpt2", "layers": 2, "width": 32, "heads": 2, "context": CONTEXT},
    "gpt2 remat": {"name": "gpt2", "layers": 2, "width": 32, "heads": 2, "context": CONTEXT, "remat": "block"},
    "llama": {"name": "decoder", "layers": 2, "width": 32, "heads": 2, "context": CONTEXT, "remat": "block"},
    "learned positions": {
        "name": "decoder",
        "layers": 2,
        "width": 32,
        "heads": 2,
        "context": CONTEXT,
        "positions": "learned",
    },
    "sliding window": {
        "name": "decoder",
        "layers": 2,
        "width": 32,
        "heads": 2,
        "context": CONTEXT,
        "window": 6,
        "layer_types": ["sliding", "full"],
    },
}


def packed() -> PackedRows:
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, VOCABULARY, sum(SIZES), dtype=np.uint16)
    return PackedRows(tokens, pack(np.cumsum(SIZES), CONTEXT + 1), CONTEXT, Source("here", VOCABULARY))


def task_of(model: dict[str, Any], has_segments: bool = True) -> Any:
    config = Config.model_validate({"steps": 1, "batch_size": 2, "model": model, "sample": {"tokens": 0}})
    rows = packed()
    return make_task(config, Dataset(rows, rows, b"", VOCABULARY, has_segments=has_segments))


def batch_of(examples: PackedRows) -> dict[str, np.ndarray]:
    every = np.arange(examples.size)
    batch = examples.gather(every, np.zeros_like(every))
    share = batch["weights"].size / batch["weights"].sum()
    return {**batch, "weights": batch["weights"] * np.float32(share)}


def one_by_one(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a row for each document of each row, padded behind it, and without segments."""
    tokens, weights = [], []
    for line, segments, of_line in zip(batch["tokens"], batch["segments"], batch["weights"], strict=True):
        for number in range(1, segments.max() + 1):
            here = np.flatnonzero(segments == number)
            row, count = np.zeros(CONTEXT + 1, np.int32), np.zeros(CONTEXT, np.float32)
            row[: len(here) + 1] = line[here[0] : here[-1] + 2]
            count[: len(here)] = of_line[here]
            tokens.append(row)
            weights.append(count)
    share = np.float32(len(tokens) / len(batch["tokens"]))
    return {"tokens": np.array(tokens), "weights": np.array(weights) * share}


@pytest.mark.parametrize("model", mostly_long(MODELS, lambda _, model: model in ("gpt2 remat", "sliding window")))
def test_each_document_as_if_alone(model: str) -> None:
    """Loss and gradients of packed rows are those of one document in a row; so is an evaluation."""
    task = task_of(MODELS[model])
    params = jax.jit(task.init)(jax.random.key(0))
    together = batch_of(packed())
    apart = one_by_one(together)

    @jax.jit
    def computed(params: Any, batch: Any) -> Any:
        loss = jax.value_and_grad(lambda p: task.loss(p, batch, jax.random.key(1))[0])(params)
        return loss, task.evaluate(params, batch)

    (first, gradients), one_sums = computed(params, together)
    (second, expected), other_sums = computed(params, apart)
    assert float(first) == pytest.approx(float(second), rel=1e-5)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    means = [float(sums["loss"]) / float(sums["count"]) for sums in (one_sums, other_sums)]
    assert means[0] == pytest.approx(means[1], rel=1e-5)


def test_no_attention_between_documents() -> None:
    """The outputs of a document do not depend on the others in its row, nor on padding."""
    task = task_of(MODELS["llama"])
    params = jax.jit(task.init)(jax.random.key(0))
    batch = batch_of(packed())
    row = int(np.argmax(batch["segments"].max(1)))
    segments = batch["segments"][row : row + 1]

    def logits(embedded: Any, number: int) -> Any:
        changed = {**params, "embed": {"embedding": embedded}}
        given = jnp.where(segments == number, batch["tokens"][row : row + 1, :-1], VOCABULARY - 1)
        out = task._model.logits(changed, given, None, segments)
        return jnp.where((segments == number)[..., None], out, 0).sum()

    table = params["embed"]["embedding"]
    unused = [t for t in range(VOCABULARY - 1) if t not in batch["tokens"][row]]
    gradient = jax.jit(jax.grad(lambda e: logits(e, 2)))(table)
    others, head = gradient[VOCABULARY - 1], gradient[unused[0]]  # the latter is of the tied head alone
    np.testing.assert_allclose(others, head, atol=1e-6)


def test_splash_attention() -> None:
    """On TPUs; here it is interpreted."""
    shape = (2, 128, 2, 64)
    query, key, value = (jax.random.normal(jax.random.key(n), shape) for n in range(3))
    segments = jnp.array([[1] * 50 + [2] * 70 + [0] * 8, [1] * 128])
    expected = attend(query, key, value, "xla", Scores(0.1), segments=segments)
    found = by_splash(Scores(0.1), query, key, value, segments, interpret=True)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    with pytest.raises(UserError, match="cudnn has no segments"):
        attend(query, key, value, "cudnn", Scores(0.1), segments=segments)
    assert positions_in(segments, segments)[0, 45:55].tolist() == [45, 46, 47, 48, 49, 0, 1, 2, 3, 4]


class Average(nn.Module):
    """A model of a user that takes segments: the mean embedding of the tokens so far in a document."""

    vocabulary: int

    @nn.compact
    def __call__(self, tokens: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        x = nn.Embed(self.vocabulary, 8)(tokens)
        seen = jnp.tril(jnp.ones((tokens.shape[1],) * 2))[None]
        if segments is not None:
            seen = seen * (segments[:, :, None] == segments[:, None, :])
        x = jnp.einsum("bts,bsc->btc", seen, x) / seen.sum(-1, keepdims=True)
        return nn.Dense(self.vocabulary)(x)


class AverageNNX(nnx.Module):
    """An nnx model gets segments as well."""

    def __init__(self, vocabulary: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(vocabulary, 8, rngs=rngs)
        self.head = nnx.Linear(8, vocabulary, rngs=rngs)

    def __call__(self, tokens: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        x = self.embed(tokens)
        seen = jnp.tril(jnp.ones((tokens.shape[1],) * 2))[None]
        if segments is not None:
            seen = seen * (segments[:, :, None] == segments[:, None, :])
        return self.head(jnp.einsum("bts,bsc->btc", seen, x) / seen.sum(-1, keepdims=True))


class Deaf(nn.Module):
    """A model of a user that takes no segments."""

    vocabulary: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        return nn.Embed(self.vocabulary, self.vocabulary)(tokens)


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("users_models")
    module.average = lambda options, vocabulary, dtype: Average(vocabulary)
    module.average_nnx = lambda options, vocabulary, dtype, rngs: AverageNNX(vocabulary, rngs)
    module.deaf = lambda options, vocabulary, dtype: Deaf(vocabulary)
    monkeypatch.setitem(sys.modules, "users_models", module)


@pytest.mark.parametrize("name", ["average", "average_nnx"])
def test_models_of_users(users: None, name: str) -> None:
    task = task_of({"name": f"users_models:{name}", "options": {"context": CONTEXT}})
    params = task.init(jax.random.key(0))
    together = batch_of(packed())
    losses = [float(task.loss(params, batch, jax.random.key(1))[0]) for batch in (together, one_by_one(together))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_model_without_segments(users: None) -> None:
    with pytest.raises(UserError, match="takes no `segments`, so that documents in a row would attend to each other"):
        task_of({"name": "users_models:deaf", "options": {"context": CONTEXT}})
    task_of({"name": "users_models:deaf", "options": {"context": CONTEXT}}, has_segments=False)
