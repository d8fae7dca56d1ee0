"""Load a user's model, find out which framework it is written in, and adapt it to the common interface."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from .. import plugins
from .adapter import KEY, Model
from .functions import Functions
from .linen import Linen

_WHOLE = (Linen, Functions)
"""Adapters of models that take the random key when they are initialised. The first one that accepts a model is used."""


class _Seeded(NamedTuple):
    """A framework whose modules take the random key in their constructor, so that the adapter has to construct them."""

    seed: str
    """Name of that parameter."""
    package: str
    adapter: str
    """`module:class` of the adapter."""

    @property
    def imported(self) -> bool:
        return self.package in sys.modules

    def accepts(self, model: Any) -> bool:
        """Return whether an object is a module of this framework."""
        return self.imported and isinstance(model, sys.modules[self.package].Module)

    def make(self, name: str, make: Callable[[Any], Any]) -> Model:
        """Return the adapted model; `make` constructs the module from the random key."""
        file, _, adapter = self.adapter.partition(":")
        model: Model = getattr(import_module(f".{file}", __package__), adapter)(name, make)
        return model


_NNX = _Seeded("rngs", "flax.nnx", "nnx:NNX")
_EQUINOX = _Seeded("key", "equinox", "equinox:Equinox")


def adapt(name: str, **arguments: Any) -> Model:
    """Load and adapt the user's model. Raises UserError if its framework is not supported."""
    function = plugins.load(name, KEY)
    if not callable(function) and Functions.accepts(function):
        return Functions(name, function)
    signature = plugins.signature_of(function) if callable(function) else None
    kinds = [_NNX, *[_EQUINOX] * _EQUINOX.imported]  # if Equinox is not imported, `key` means something else
    kind = next((kind for kind in kinds if signature and kind.seed in signature.parameters), None)
    if kind is not None:
        seed = kind.seed
        plugins.check_call(function, name, KEY, arguments, [seed])
        return kind.make(name, lambda value: function(*arguments.values(), **{seed: value}))
    model = plugins.call(name, KEY, **arguments)
    if seeded := next((kind for kind in (_NNX, _EQUINOX) if kind.accepts(model)), None):
        plugins.refuse(
            name,
            KEY,
            f"returns {plugins.short(model)}, a module of {seeded.package} whose weights do not follow the job's seed; "
            f"give it a parameter `{seeded.seed}`, and make the module with that",
        )
    adapter = next((adapter for adapter in _WHOLE if adapter.accepts(model)), None)
    if adapter is None:
        expected = "a flax.linen.Module, or an object with `init` and `apply`"
        seeds = "those of flax.nnx take `rngs`, of equinox `key`"
        plugins.refuse(name, KEY, f"returns {plugins.short(model)}, expected {expected}; {seeds}")
    return adapter(name, model)
