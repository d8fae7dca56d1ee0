"""Models in flax.linen: the collection `params` is trained; all other collections are state."""

from __future__ import annotations

import dataclasses
import inspect
from functools import partial
from typing import Any

import flax.linen as nn
import jax

from ..state import Params
from .adapter import Model, rules_of, stacked_of
from .calls import Call
from .gathering import Tables


class Linen(Model):
    """A linen module. It is called with a batch, and with a flag for training and a key if its signature names them."""

    @staticmethod
    def accepts(model: Any) -> bool:
        """Return whether an object is a linen module."""
        return isinstance(model, nn.Module)

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self._call = Call(self, module, ["x"], ["key", "segments"])
        self.takes_segments = self._call.takes("segments")
        self.stacked, self.partition_rules = stacked_of(module), rules_of(module)
        fields = {field.name for field in dataclasses.fields(module)}
        self.has_head = all(
            name not in fields and inspect.isfunction(getattr(type(module), name, None)) for name in ("hidden", "head")
        )
        if isinstance(tables := getattr(module, "tables", None), Tables) and _is_as_written(module):
            self.tables = tables

    def init(self, key: jax.Array, x: jax.Array) -> tuple[Params, Any]:
        state = dict(self._call(partial(self.module.init, key), x, training=False, key=None, segments=None))
        params = state.pop("params", {})
        if not self._call.has_flag or self._call.takes("key"):
            self.check_evaluation(params, state, x)
        return params, state

    def apply(
        self, params: Params, state: Any, x: jax.Array, key: jax.Array | None, segments: jax.Array | None = None
    ) -> tuple[Any, Any]:
        return self._apply(params, state, x, key, segments, None)

    def apply_hidden(
        self, params: Params, state: Any, x: jax.Array, key: jax.Array | None, segments: jax.Array | None = None
    ) -> tuple[Any, Any]:
        # Names of operations begin with the model, as those of `__call__` do: without it the first layer's would be lost.
        with jax.named_scope(type(self.module).__name__):
            return self._apply(params, state, x, key, segments, "hidden")

    def apply_head(self, params: Params, state: Any, hidden: jax.Array) -> Any:
        return self.module.apply({"params": params, **(state or {})}, hidden, method="head")

    def _apply(
        self,
        params: Params,
        state: Any,
        x: jax.Array,
        key: jax.Array | None,
        segments: jax.Array | None,
        method: str | None,
    ) -> Any:
        apply = partial(self.module.apply, {"params": params, **(state or {})}, method=method)
        if key is None:
            return self._call(apply, x, training=False, key=None, segments=segments), state
        rngs = {"dropout": key, "params": jax.random.fold_in(key, 1)}  # flax uses `params` for all other streams
        mutable = {} if state is None else {"mutable": list(state)}
        direct = jax.random.fold_in(key, 2)
        apply = partial(apply, rngs=rngs, **mutable)
        result = self._call(apply, x, training=True, key=direct, segments=segments)
        return (result, None) if state is None else result


def _is_as_written(module: nn.Module) -> bool:
    """Return whether no subclass has another head, or other parameters, than the class that has the tables."""
    written = next(each for each in type(module).__mro__ if "tables" in vars(each))
    names = ("setup", "__call__", "hidden", "head", "outputs")
    return all(getattr(type(module), name, None) is getattr(written, name, None) for name in names)
