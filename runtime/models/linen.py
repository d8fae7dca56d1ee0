"""Models of flax.linen: variables come in collections, of which `params` is trained and all others are state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax

from ..state import Params
from .adapter import Model


class Linen(Model):
    """A module with `__call__(x, deterministic)`."""

    def __init__(self, name: str, module: nn.Module, streams: Sequence[str] = ("dropout",)) -> None:
        """Wrap a module. `streams`: names of random numbers; flax takes `params` for those that have no other."""
        self.name = name
        self.module = module
        self._streams = streams
        self.check_call(module, ["x", "deterministic"])

    def init(self, key: jax.Array, x: jax.Array) -> tuple[Params, Any]:
        variables = dict(self.module.init(key, x, True))
        return variables.pop("params", {}), variables

    def apply(self, params: Params, state: Any, x: jax.Array, key: jax.Array | None) -> tuple[Any, Any]:
        variables = {"params": params, **(state or {})}
        if key is None:
            return self.module.apply(variables, x, True), state
        rngs = {name: jax.random.fold_in(key, i) if i else key for i, name in enumerate(self._streams)}
        if state is None:
            return self.module.apply(variables, x, False, rngs=rngs), None
        return self.module.apply(variables, x, False, rngs=rngs, mutable=list(state))
