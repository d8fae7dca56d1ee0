"""Tell what a user's model is written in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import flax.linen as nn

from .. import plugins
from .adapter import KEY, Model
from .functions import Functions
from .linen import Linen

_SEEDS = {"rngs": ("nnx", "NNX"), "key": ("equinox", "Equinox")}
"""Parameter by which a framework's modules take their random numbers: file and class of its adapter."""
_CLASSES = {"flax.nnx": "rngs", "equinox": "key"}


def adapt(name: str, **arguments: Any) -> Model:
    """Load the user's model, and return it under the contract. Raises UserError if it is of no framework that is known."""
    function = plugins.load(name, KEY)
    if not callable(function) and Functions.fits(function):
        return Functions(name, function)
    signature = plugins.signature_of(function) if callable(function) else None
    seed = next((word for word in _SEEDS if signature and word in signature.parameters), None)
    if seed == "rngs" or (seed == "key" and "equinox" in sys.modules):
        plugins.check_call(function, name, KEY, arguments, [seed])
        return _made_with(seed, name, lambda value: function(*arguments.values(), **{seed: value}))
    model = plugins.call(name, KEY, **arguments)
    if isinstance(model, nn.Module):
        return Linen(name, model, streams=("dropout", "params"))
    for module, word in _CLASSES.items():
        if module in sys.modules and isinstance(model, sys.modules[module].Module):
            plugins.refuse(
                name,
                KEY,
                f"returns {plugins.short(model)}, a module of {module} whose weights do not follow the job's seed; give it a "
                f"parameter `{word}`, and make the module with that",
            )
    if not Functions.fits(model):
        kinds = (
            "a flax.linen.Module, or an object with `init` and `apply`; those of flax.nnx take `rngs`, of equinox `key`"
        )
        plugins.refuse(name, KEY, f"returns {plugins.short(model)}, expected {kinds}")
    return Functions(name, model)


def _made_with(seed: str, name: str, make: Callable[[Any], Any]) -> Model:
    file, adapter = _SEEDS[seed]
    model: Model = getattr(import_module(f".{file}", __package__), adapter)(name, make)
    return model
