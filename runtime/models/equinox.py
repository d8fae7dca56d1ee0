"""Models in Equinox: a module is a pytree whose float arrays are the parameters. Equinox is imported by the user's code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .. import plugins
from ..state import Params
from .adapter import Model, named, refilled
from .calls import Call


class Equinox(Model):
    """An Equinox module. It is called with one example, and its state if it has one; also a key and a flag if it names them.

    `jax.vmap` with axis_name="batch" maps it over a batch. Arrays of other dtypes than floats are part of the state.
    """

    def __init__(self, name: str, make: Callable[[jax.Array], Any]) -> None:
        self.name = name
        self._make = make
        self._eqx: Any = sys.modules["equinox"]
        self._like, self._like_state = self._eqx.filter_eval_shape(self._module, jax.random.key(0))
        self._call = Call(self, self._like, ["x", *["state"] * (self._like_state is not None)], ["key", "segments"])
        self.takes_segments = self._call.takes("segments")

    def init(self, key: jax.Array, x: jax.Array) -> tuple[Params, Any]:
        module, state = self._module(key)
        params, others, _ = _divided(module)
        kinds = {"arrays": named(others), "state": named(state)}
        values = named(params), {kind: arrays for kind, arrays in kinds.items() if arrays}
        if self._call.takes("key"):
            self.check_evaluation(*values, x)
        return values

    def apply(
        self, params: Params, state: Any, x: jax.Array, key: jax.Array | None, segments: jax.Array | None = None
    ) -> tuple[Any, Any]:
        parts, static = state or {}, _divided(self._like)[2]
        like_params, like_others, _ = _divided(self._like)
        arrays = (refilled(like_params, params), refilled(like_others, parts.get("arrays", {})), static)
        module = self._eqx.nn.inference_mode(self._eqx.combine(*arrays), value=key is None)
        keys = jax.random.split(key, len(x)) if key is not None and self._call.takes("key") else None
        call = partial(self._call, module, training=key is not None)
        if self._like_state is None:
            outputs = jax.vmap(lambda x, key, of: call(x, key=key, segments=of), axis_name="batch")(x, keys, segments)
            return outputs, state
        before = refilled(self._like_state, parts["state"])

        def one(x: Any, key: Any, segments: Any) -> Any:
            return self._pair(call(x, before, key=key, segments=segments))

        outputs, after = jax.vmap(one, out_axes=(0, None), axis_name="batch")(x, keys, segments)
        return outputs, {**parts, "state": named(after)}

    def _module(self, key: jax.Array) -> tuple[Any, Any]:
        """Make the module, and its state or None."""
        made = self._make(key)
        module, state = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(module, self._eqx.Module) or not (state is None or isinstance(state, self._eqx.nn.State)):
            self.refuse(
                f"takes `key` and returns {plugins.short(made)}, expected an equinox.Module, or that and its equinox.nn.State"
            )
        return module, state

    def _pair(self, result: Any) -> Any:
        if not isinstance(result, tuple) or len(result) != 2:
            self.refuse(
                f"gives {plugins.short(result)} for an example and a state, expected the outputs and the new state"
            )
        return result


def _divided(module: Any) -> tuple[Any, Any, Any]:
    """Split a module into float arrays, other arrays and the rest, each with the structure of `module` and None elsewhere."""

    def kind(leaf: Any) -> int:
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            return 2
        return 0 if jnp.issubdtype(leaf.dtype, jnp.inexact) else 1

    one, two, three = (jax.tree.map(lambda leaf, n=n: leaf if kind(leaf) == n else None, module) for n in range(3))
    return one, two, three
