"""The losses of the next token: their gradient, the pieces of the logits, and a head whose matrix is padded on GPUs."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.config.model import DecoderModel
from podrun.runtime.models.decoder import Decoder
from podrun.runtime.models.gpt2 import GPT2
from podrun.runtime.models.layers import padded_product
from podrun.runtime.models.linen import Linen
from podrun.runtime.tasks.next_token import NextToken, next_token

RANDOM = np.random.default_rng(0)
GIB = 2**30


def model(vocabulary: int, **keys: Any) -> NextToken:
    sizes = {"layers": 1, "heads": 2, "width": 16, "context": 8, **keys}
    return NextToken(Config.model_validate({"steps": 1, "batch_size": 4, "model": sizes}), vocabulary)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_the_gradient_is_that_of_the_formula(scale: float) -> None:
    """Loss and z-loss together, also for logits whose exponentials overflow, and for tokens of no weight."""
    logits = jnp.asarray(RANDOM.normal(0, scale, (2, 5, 7)), jnp.float32)
    targets = jnp.asarray(RANDOM.integers(7, size=(2, 5)), jnp.int32)
    weights = jnp.asarray(RANDOM.random((2, 5)) * [1, 0, 1, 1, 1], jnp.float32)

    def ours(x: jax.Array) -> jax.Array:
        losses = next_token(x, targets)
        return (weights * (losses.loss + 0.01 * losses.log_z**2)).sum()

    def formula(x: jax.Array) -> jax.Array:
        log_z = jax.nn.logsumexp(x, -1)
        each = log_z - jnp.take_along_axis(x, targets[..., None], -1)[..., 0]
        return (weights * (each + 0.01 * log_z**2)).sum()

    (loss, gradient), (wanted, like) = (jax.jit(jax.value_and_grad(f))(logits) for f in (ours, formula))
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    np.testing.assert_allclose(gradient, like, rtol=1e-5, atol=1e-6 * float(jnp.abs(like).max()))


def test_a_step_keeps_no_exponentials_of_the_logits() -> None:
    """Kept are the logits, the targets and a number for each token."""
    logits, targets = jnp.zeros((2, 5, 7)), jnp.zeros((2, 5), jnp.int32)
    _, backward = jax.vjp(next_token, logits, targets)
    kept = [leaf for leaf in jax.tree.leaves(backward) if hasattr(leaf, "shape")]
    assert sum(leaf.size for leaf in kept if leaf.dtype == jnp.float32) == 2 * 5 * 7 + 2 * 5


@pytest.mark.parametrize(
    ("memory", "rows", "pieces"),
    [
        (None, 1, 4),  # 196 MiB in pieces of up to 64 MiB
        (None, 20, 62),
        (105 * GIB, 20, 1),  # 3.8 GiB of an H200: less than a twelfth
        (59 * GIB, 20, 1),
        (59 * GIB, 40, 7),  # 7.7 GiB; a forty-eighth of an H100 is 1.2 GiB
        (1 * GIB, 20, 62),  # never smaller pieces than elsewhere
    ],
)
def test_pieces_follow_the_memory_of_a_gpu(memory: int | None, rows: int, pieces: int) -> None:
    assert model(50257).pieces(rows, 1024, memory) == pieces


def test_a_padded_product() -> None:
    """Rows of zeros change neither logits nor gradients."""
    hidden = jnp.asarray(RANDOM.normal(0, 1, (2, 3, 16)), jnp.float32)
    table = jnp.asarray(RANDOM.normal(0, 1, (13, 16)), jnp.float32)

    def total(product: Any) -> Any:
        return jax.jit(jax.value_and_grad(lambda *given: jnp.sin(product(*given)).sum(), (0, 1)))(hidden, table)

    ours, plain = total(padded_product), total(lambda hidden, table: hidden @ table.T)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, plain)


@pytest.mark.parametrize(("platform", "columns"), [("cuda", 56), ("tpu", 53), ("cpu", 53)])
def test_the_head_is_padded_on_gpus_only(platform: str, columns: int) -> None:
    one = GPT2(Config.model_validate({"steps": 1, "batch_size": 1}).model, 53, jnp.dtype("bfloat16"))  # type: ignore[arg-type]
    tokens = jnp.zeros((1, 8), jnp.int32)
    shapes = jax.eval_shape(one.init, jax.random.key(0), tokens)
    lowered = jax.jit(one.apply).trace(shapes, tokens).lower(lowering_platforms=(platform,)).as_text()
    products = [line for line in lowered.splitlines() if "dot_general" in line and f"1x8x{columns}xbf16>" in line]
    assert len(products) == 1


class _Halved(Decoder):
    @nn.nowrap
    def head(self, hidden: jax.Array) -> jax.Array:
        return super().head(hidden) * 0.5


@pytest.mark.parametrize(("kind", "has_tables"), [(Decoder, True), (_Halved, False)])
def test_a_head_of_ones_own_is_called(kind: type[Decoder], has_tables: bool) -> None:
    """The matrix of the class's head does not say what a subclass computes with it."""
    section = DecoderModel(layers=1, heads=2, width=16, context=8, name="decoder")
    adapter = Linen("own", kind(section, 32, jnp.dtype("float32")))
    assert (adapter.tables is not None) is has_tables
