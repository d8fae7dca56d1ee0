"""Parameters are recognized by name and shape: trees as flax, Equinox, haiku and plain JAX make them."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from podrun.runtime.models.adapter import named
from podrun.runtime.weights import Weight, weights

WIDTH, LAYERS = 6, 3


def found(params: Any) -> dict[str, Weight]:
    return {weight.name: weight for weight in jax.tree.leaves(weights(params))}


def decayed(params: Any) -> set[str]:
    return {name for name, weight in found(params).items() if weight.is_decayed}


def hidden(params: Any) -> set[str]:
    return {name for name, weight in found(params).items() if weight.is_hidden_matrix}


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), tree, is_leaf=lambda s: isinstance(s, tuple))


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: Any) -> tuple[jax.Array, None]:
        y = nn.LayerNorm(name="ln_1")(x)
        x = x + nn.MultiHeadDotProductAttention(2, name="attn")(y)
        return x + nn.Dense(WIDTH, name="mlp")(nn.RMSNorm()(x)), None


class LinenLM(nn.Module):
    """A transformer whose layers are scanned."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(11, WIDTH)(tokens)
        scanned = nn.scan(LinenBlock, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
        x, _ = scanned(name="layers")(x, None)
        logits: jax.Array = nn.Dense(11, name="lm_head")(nn.LayerNorm()(x))
        return logits


def test_scanned_layers_of_linen() -> None:
    """The axis of the layers makes no matrix of a bias or a norm; kernels by head have three dimensions of their own."""
    params = jax.eval_shape(LinenLM().init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    attention = {f"layers.attn.{name}.kernel" for name in ("query", "key", "value", "out")}
    assert decayed(params) == {"Embed_0.embedding", "layers.mlp.kernel", "lm_head.kernel", *attention}
    assert hidden(params) == {"layers.mlp.kernel"}
    assert found(params)["layers.mlp.kernel"].stacked == 1


def test_layers_of_nnx_in_a_vmap() -> None:
    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
            self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    @nnx.split_rngs(splits=LAYERS)
    @nnx.vmap
    def blocks(rngs: nnx.Rngs) -> Block:
        return Block(rngs)

    params = named(nnx.to_pure_dict(nnx.state(blocks(nnx.Rngs(0)), nnx.Param)))
    assert decayed(params) == hidden(params) == {"linear.kernel"}


def test_layers_of_equinox_in_a_vmap() -> None:
    """Whatever the name of the norm: a bias beside it shows that the first axis is the layer."""

    class Block(eqx.Module):
        before: eqx.nn.LayerNorm
        linear: eqx.nn.Linear

    def block(key: jax.Array) -> Block:
        return Block(eqx.nn.LayerNorm(WIDTH), eqx.nn.Linear(WIDTH, WIDTH, key=key))

    stacked = eqx.filter_vmap(block)(jax.random.split(jax.random.key(0), LAYERS))
    params = {"embed": {"weight": jnp.zeros((11, WIDTH))}, "blocks": named(eqx.filter(stacked, eqx.is_array))}
    assert decayed(params) == {"embed.weight", "blocks.linear.weight"}
    assert hidden(params) == {"blocks.linear.weight"}


@pytest.mark.parametrize(
    ("tree", "expected", "matrices"),
    [
        ({"w": (3, 4), "b": (4,)}, {"w"}, {"w"}),
        ({"w1": (4, 3), "b1": (4, 1), "w2": (2, 4), "b2": (2, 1)}, {"w1", "w2"}, {"w1", "w2"}),  # columns
        ({"w": (1, 4), "b": (1, 4)}, {"w"}, {"w"}),
        ({"linear": {"w": (3, 4), "b": (4,)}, "a/~/layer_norm": {"scale": (4,)}}, {"linear.w"}, {"linear.w"}),  # haiku
        ({"conv": {"weight": (8, 3, 3, 3), "bias": (8, 1, 1)}}, {"conv.weight"}, set()),  # Equinox
        ({"conv": {"kernel": (3, 3, 3, 8), "bias": (8,)}}, {"conv.kernel"}, set()),
        ({"wq": (5, 4, 4), "bq": (5, 4), "ln1_g": (5, 4), "ln1_b": (5, 4)}, {"wq"}, {"wq"}),
        ({"mlp": {"experts": {"w": (5, 2, 4, 4), "b": (5, 2, 4)}}}, {"mlp.experts.w"}, {"mlp.experts.w"}),
        ({"pre_norm_mlp": {"w": (4, 16), "b": (16,)}, "norm": {"Dense_0": {"kernel": (4, 4)}}}, None, None),
        ({"wte": (11, 4), "unembed": (4, 11), "lm_head": {"w": (4, 11)}, "pos_emb": (8, 4)}, None, set()),
        (
            {"multi_head": {"w": (4, 4)}, "normal": {"w": (4, 4)}, "embedded_out": {"kernel": (4, 4)}},
            None,
            "multi normal",
        ),
    ],
)
def test_trees_of_other_hands(tree: Any, expected: set[str] | None, matrices: Any) -> None:
    """None: all that has two dimensions."""
    params = shapes(tree)
    every = {name for name, weight in found(params).items() if len(weight.shape) >= 2}
    assert decayed(params) == (every if expected is None else expected)
    if isinstance(matrices, set):
        assert hidden(params) == matrices
