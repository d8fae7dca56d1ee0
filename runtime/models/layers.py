"""The loop over the layers of a model whose parameters are stacked: every array has a leading axis of layers.

The program of a layer is traced and compiled once, for all of them. Layers may differ in a repeating pattern, as where every
sixth has another attention; then there is a stack of parameters for each place in the pattern.

Where devices hold parts of the parameters, the strategy sets by `gathering` how they are gathered. Those of a layer are
gathered in the loop, and again in the backward pass, so that those of one layer are whole at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ..config import Config
from ..config.model import DecoderModel, Remat
from ..config.parallel import Explicit, Jit
from ..contract import UserError
from ..devices import Devices
from ..state import Params
from .adapter import name_of
from .gathering import Gathering, gathering_now

Layer = Callable[[Params, jax.Array, jax.Array | None], jax.Array]
"""Maps the parameters of a layer, activations, and a key for dropout or None, to activations of the same shape and dtype."""


def scan_layers(
    pattern: Sequence[Layer],
    stacks: Sequence[Params],
    x: jax.Array,
    keys: jax.Array | None,
    remat: Remat = "none",
    in_loop: bool = True,
) -> jax.Array:
    """Apply the layers of the pattern one after another, and repeat that as often as the parameters are stacked.

    Args:
        pattern: the functions of the layers; a single one if they are all alike.
        stacks: for each function in the pattern, the parameters of all its layers, stacked: [repeats, ...].
        x: activations, the input of the first layer.
        keys: keys for dropout, [repeats, len(pattern)], or None.
        remat: which results the backward pass computes again.
        in_loop: whether the program has a loop, or all layers one after another. A GPU copies what a loop keeps for the
            backward pass (docs/gpu.md).

    Returns:
        The output of the last layer, of the shape and dtype of `x`.
    """
    repeats = len(jax.tree.leaves(stacks)[0])
    # In a loop XLA has nothing to merge; a loop of one turn it unrolls.
    again = partial(_computed_again, remat=remat, prevent_cse=repeats == 1 or not in_loop)
    layers = [again(layer) for layer in pattern]

    def turn(x: jax.Array, these: Any) -> tuple[jax.Array, None]:
        parameters, keys = these
        for place, layer in enumerate(layers):
            x = layer(parameters[place], x, None if keys is None else keys[place])
        return x, None

    last: jax.Array = jax.lax.scan(turn, x, (list(stacks), keys), unroll=not in_loop)[0]
    return last


def whole_layer(params: Params, dtype: jax.typing.DTypeLike, by: Gathering | None = None) -> Params:
    """Return the parameters of one layer, gathered if devices hold parts of them: by `by`, or as `gathering` says."""
    by = by or gathering_now()
    if by is None:
        return params
    # Layers convert their parameters to the dtype of x. Before they are gathered, that halves the bytes sent.
    whole: Params = jax.tree.map_with_path(lambda path, leaf: by.gather(name_of(path), leaf, dtype), params)
    return whole


def _computed_again(layer: Layer, remat: Remat, prevent_cse: bool) -> Layer:
    """Wrap a layer so that it gathers its parameters, and the backward pass recomputes the results that `remat` names."""
    by = gathering_now()
    if remat == "none" and by is None:
        return layer

    def gathered(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        return layer(whole_layer(params, x.dtype, by), x, key)

    policy = _all_but_gathered if remat == "none" else saved(remat)
    again: Layer = jax.checkpoint(gathered, prevent_cse=prevent_cse, policy=policy)
    return again


def _all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Policy of jax.checkpoint: keep all results but gathered parameters, which are results of a sharding constraint."""
    return bool(primitive.name != "sharding_constraint")


def saved(remat: Remat) -> Callable[..., bool] | None:
    """Return the policy of jax.checkpoint: which results within a layer are kept for the backward pass; None: none are."""
    # Products with a weight have no batch dimensions; those of attention, whose results grow with T², have.
    return jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None


ALIGNED = 8
"""Rows of a matrix of bfloat16 that are 16 bytes: the unit in which a GPU's tensor cores read."""


def tied_logits(embed: nn.Embed, hidden: jax.Array, dtype: str | None = None) -> jax.Array:
    """Return the products of `hidden`, [..., C], with the embeddings of all V tokens: [..., V].

    They are computed in `dtype`; None: in the dtype of `embed`.

    GPT-2's V of 50257 is odd, and a GPU multiplies matrices with odd sides at half its speed (docs/gpu.md). So there rows of
    zeros are added to the embeddings, and their products left out. A TPU pads matrices itself.
    """
    with jax.named_scope("head"):
        hidden, table = nn.dtypes.promote_dtype(hidden, embed.embedding, dtype=dtype or embed.dtype)
        if table.shape[0] % ALIGNED == 0:
            return _product(hidden, table)
        logits: jax.Array = jax.lax.platform_dependent(hidden, table, cuda=padded_product, default=_product)
        return logits


def _product(hidden: jax.Array, table: jax.Array) -> jax.Array:
    return jnp.dot(hidden, table.T)


def padded_product(hidden: jax.Array, table: jax.Array) -> jax.Array:
    """Return the product of [..., C] and the transpose of [V, C], computed with a V that is aligned."""
    rows = table.shape[0]
    return jnp.dot(hidden, jnp.pad(table, ((0, -rows % ALIGNED), (0, 0))).T)[..., :rows]


def with_loop(config: Config, pod: Devices) -> Config:
    """Return the job with `scan_layers` decided for the devices of a pod."""
    section = config.model
    if not isinstance(section, DecoderModel) or section.scan_layers != "auto":
        return config
    is_gathered = isinstance(config.parallel, Jit | Explicit) and config.parallel.mesh.fsdp > 1
    in_loop = pod.platform != "gpu" or section.remat != "none" or is_gathered
    return config.model_copy(update={"model": section.model_copy(update={"scan_layers": in_loop})})


class Layers(nn.Module):
    """Applies the Linen modules of `pattern` in order, `repeats` times, in one loop; each time with parameters of their own.

    Without `in_loop` the program has no loop, but every layer one after another.

    The parameters of the i-th module of the pattern are stacked, as `block_i`. A layer is called as `layer(x, *arguments)`,
    with the same `arguments` for all, and returns an array like x. It may draw random numbers, but has no state.
    """

    pattern: Sequence[nn.Module]
    repeats: int
    remat: Remat = "none"
    in_loop: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, *arguments: Any) -> jax.Array:
        """Map an array to one of the same shape and dtype."""
        modules = [module.copy(parent=None) for module in self.pattern]
        stacks = [
            self.param(f"block_{place}", partial(self._initial, module), x, *arguments)
            for place, module in enumerate(modules)
        ]
        keys = None
        if self.has_rng("dropout"):
            keys = jax.random.split(self.make_rng("dropout"), (self.repeats, len(modules)))

        def apply(module: nn.Module, params: Params, x: jax.Array, key: jax.Array | None) -> Any:
            rngs = None if key is None else {"params": key}  # flax uses `params` for all other streams
            return module.apply({"params": params}, x, *arguments, rngs=rngs)

        return scan_layers([partial(apply, module) for module in modules], stacks, x, keys, self.remat, self.in_loop)

    def _initial(self, module: nn.Module, key: jax.Array, x: jax.Array, *arguments: Any) -> Params:
        """Return the parameters of all layers of one module of the pattern, stacked: each [repeats, ...]."""

        def initial(key: jax.Array) -> Params:
            variables = dict(module.init(key, x, *arguments))
            params = variables.pop("params", {})
            if variables:
                raise UserError(
                    f"Layers: {type(module).__name__} has the collections {', '.join(variables)}, but layers in a loop have "
                    "parameters only; keep state outside of the loop"
                )
            return params

        return jax.vmap(initial)(jax.random.split(key, self.repeats))
