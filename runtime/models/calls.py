"""Call a module with its inputs by position, and with the optional arguments that its signature names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from .. import plugins
from .adapter import Model

_IN_TRAINING = {
    "train": True,
    "training": True,
    "is_training": True,
    "enable_dropout": True,
    "deterministic": False,
    "inference": False,
}
"""Flags for training by name, with their values in training; in an evaluation they are inverted."""

_Kind = inspect.Parameter
_SINGLE = (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD, _Kind.KEYWORD_ONLY)


def flags(training: bool) -> dict[str, bool]:
    """Return the value of every flag that a module may have for training."""
    return {name: value if training else not value for name, value in _IN_TRAINING.items()}


class Call:
    """The `__call__` of a module.

    Args:
        model: the model that the module belongs to.
        module: the module, of any framework.
        positional: names of the positional arguments.
        offered: names of the keyword arguments that are passed, as the flags are, only if the signature names them.

    Raises:
        UserError: the module has another parameter without a default, or cannot be called with these arguments.
    """

    def __init__(self, model: Model, module: Any, positional: Iterable[str], offered: Iterable[str] = ()) -> None:
        positional, words = list(positional), [*_IN_TRAINING, *offered]
        signature = plugins.signature_of(type(module).__call__) if callable(module) else None
        parameters = [] if signature is None else [*signature.parameters.values()][1 + len(positional) :]
        named = [one for one in parameters if one.kind in _SINGLE]
        self._words = {one.name for one in named if one.name in words and one.kind != _Kind.POSITIONAL_ONLY}
        # The first of them are passed by position, because `nn.remat(..., static_argnums=...)` needs that.
        by_position = takewhile(lambda one: one.name in self._words and one.kind == _Kind.POSITIONAL_OR_KEYWORD, named)
        self._leading = [one.name for one in by_position]
        unknown = [one.name for one in named if one.default is _Kind.empty and one.name not in self._words]
        if unknown:
            model.refuse(
                f"its `__call__` takes {signature}, of which podrun does not know `{unknown[0]}`: give it a default, or take "
                f"one of the names that get a value: {', '.join(words)}"
            )
        model.check_call(module, positional, self._words)

    @property
    def has_flag(self) -> bool:
        """Return whether the call has a flag for training."""
        return bool(self._words & _IN_TRAINING.keys())

    def takes(self, word: str) -> bool:
        """Return whether the call has an optional argument of this name."""
        return word in self._words

    def __call__(self, module: Any, *positional: Any, training: bool, **offered: Any) -> Any:
        """Call the module, or a function with its signature, with the flags and `offered` arguments that this names."""
        values = {name: value for name, value in {**flags(training), **offered}.items() if name in self._words}
        leading = [values.pop(name) for name in self._leading]
        return module(*positional, *leading, **values)
