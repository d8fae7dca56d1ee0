"""Models of flax.linen: variables come in collections, of which `params` is trained and all others are state."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from ..state import Params
from .adapter import Model


class Linen(Model):
    """A module with `__call__(x, deterministic)`."""

    @staticmethod
    def accepts(model: Any) -> bool:
        """Return whether a model is such a module."""
        return isinstance(model, nn.Module)

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self.check_call(module, ["x", "deterministic"])

    def init(self, key: jax.Array, x: jax.Array) -> tuple[Params, Any]:
        variables = dict(self.module.init(key, x, True))
        return variables.pop("params", {}), variables

    def apply(self, params: Params, state: Any, x: jax.Array, key: jax.Array | None) -> tuple[Any, Any]:
        variables = {"params": params, **(state or {})}
        if key is None:
            return self.module.apply(variables, x, True), state
        rngs = {"dropout": key, "params": jax.random.fold_in(key, 1)}  # flax takes `params` for all other names
        if state is None:
            return self.module.apply(variables, x, False, rngs=rngs), None
        return self.module.apply(variables, x, False, rngs=rngs, mutable=list(state))
