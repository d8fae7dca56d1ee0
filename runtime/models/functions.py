"""Models in plain JAX: an object, or a Python module, with functions `init` and `apply`."""

from __future__ import annotations

from typing import Any

import jax

from .. import plugins
from ..state import Params
from .adapter import KEY, Model, named, refilled, rules_of, stacked_of
from .calls import flags

_BY_NAME = ("state", "key", "segments", *flags(training=True))


class Functions(Model):
    """A pair of functions: `init(key, x)` or `init(key)`, and `apply(params, x)`.

    `apply` may also have parameters named `state`, `key`, `segments` and flags for training. If it has `state`, `init`
    returns (params, state) and `apply` returns (outputs, state).
    """

    @staticmethod
    def accepts(model: Any) -> bool:
        """Return whether an object has the two functions."""
        return hasattr(model, "init") and hasattr(model, "apply")

    def __init__(self, name: str, model: Any) -> None:
        self.name = name
        self._model = model
        self.stacked, self.partition_rules = stacked_of(model), rules_of(model)
        signature = plugins.signature_of(model.apply)
        self._names = [word for word in _BY_NAME if signature is not None and word in signature.parameters]
        self.takes_segments = "segments" in self._names
        plugins.check_call(model.apply, name, KEY, ["params", "x"], self._names, part="apply")
        signature = plugins.signature_of(model.init)
        self._with_example = signature is None or len(signature.parameters) > 1
        plugins.check_call(model.init, name, KEY, ["key", "x"] if self._with_example else ["key"], part="init")
        self._like: Any = None
        """Structure of parameters and state as `init` returns them."""

    def init(self, key: jax.Array, x: jax.Array) -> tuple[Params, Any]:
        first = self._model.init(key, x) if self._with_example else self._model.init(key)
        if first is None:
            self.refuse("its `init` returns None, expected parameters")
        params, state = self._pair("init", "params", first) if "state" in self._names else (first, None)
        arrays = named(params), named(state)
        self._like = jax.tree.map(lambda leaf: 0, (params, state))
        if "key" in self._names:
            self.check_evaluation(*arrays, x)
        return arrays

    def apply(
        self, params: Params, state: Any, x: jax.Array, key: jax.Array | None, segments: jax.Array | None = None
    ) -> tuple[Any, Any]:
        like_params, like_state = self._like
        values = {
            "state": refilled(like_state, state or {}),
            "key": key,
            "segments": segments,
            **flags(key is not None),
        }
        result = self._model.apply(refilled(like_params, params), x, **{name: values[name] for name in self._names})
        if "state" not in self._names:
            return result, state
        outputs, after = self._pair("apply", "outputs", result)
        return outputs, named(after)

    def _pair(self, function: str, first: str, result: Any) -> Any:
        if not isinstance(result, tuple) or len(result) != 2:
            self.refuse(f"its `{function}` returns {plugins.short(result)}, expected ({first}, state)")
        return result
