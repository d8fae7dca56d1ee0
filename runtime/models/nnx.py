"""Models in flax.nnx: a module is split into static structure, parameters, random streams, and other variables (state)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .. import plugins
from ..array_names import Arrays
from ..state import Params
from .adapter import Model, name_of, named, refilled
from .calls import Call


class NNX(Model):
    """An nnx module. It is called with a batch, and with a flag for training, `rngs` and a key if its signature names them.

    Before a call, `train()` or `eval()` of the module is called. In an evaluation `rngs` and the key are None.
    """

    def __init__(self, name: str, make: Callable[[nnx.Rngs], Any]) -> None:
        self.name = name
        self._make = make
        abstract = nnx.eval_shape(lambda: self._module(jax.random.key(0)))
        self._call = Call(self, abstract, ["x"], ["rngs", "key", "segments"])
        self.takes_segments = self._call.takes("segments")
        self._graph, *self._like = _split(abstract)

    def init(self, key: jax.Array, x: jax.Array) -> tuple[Params, Any]:
        _, params, _, state = _split(self._module(key))
        values = _dictionary(params), _dictionary(state)
        if self._call.takes("rngs") or self._call.takes("key"):
            self.check_evaluation(*values, x)
        return values

    def apply(
        self, params: Params, state: Any, x: jax.Array, key: jax.Array | None, segments: jax.Array | None = None
    ) -> tuple[Any, Any]:
        like_params, like_streams, like_state = self._like
        streams = _seeded(like_streams, jax.random.key(0) if key is None else key)
        module = nnx.merge(self._graph, _filled(like_params, params), streams, _filled(like_state, state or {}))
        if key is None:
            module.eval()
            return self._call(module, x, training=False, rngs=None, key=None, segments=segments), state
        module.train()
        rngs, direct = nnx.Rngs(jax.random.fold_in(key, 1)), jax.random.fold_in(key, 2)
        outputs = self._call(module, x, training=True, rngs=rngs, key=direct, segments=segments)
        nnx.pop(module, nnx.Intermediate)
        return outputs, _dictionary(_split(module)[3])

    def _module(self, key: jax.Array) -> Any:
        module = self._make(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            self.refuse(f"takes `rngs` and returns {plugins.short(module)}, expected a flax.nnx.Module")
        return module


def _split(module: Any) -> Any:
    """Return (static structure, parameters, random streams, all other variables)."""
    return nnx.split(module, nnx.Param, nnx.RngState, ...)


def _dictionary(state: Any) -> Arrays:
    return named(nnx.to_pure_dict(state))


def _filled(like: Any, values: Arrays) -> Any:
    """Return `like`, a part of a split module, with its values replaced."""
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(refilled(nnx.to_pure_dict(like), values)))


def _seeded(like: Any, key: jax.Array) -> Any:
    """Return a module's random streams for one step, each reset with a key derived from `key` and its name."""

    def start(path: Any, leaf: Any) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros(leaf.shape, leaf.dtype)
        of_stream = jax.random.fold_in(key, zlib.crc32(name_of(path).encode()))
        return jax.random.split(of_stream, leaf.shape) if leaf.shape else of_stream

    pure = jax.tree.map_with_path(start, nnx.to_pure_dict(like))
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(pure))
