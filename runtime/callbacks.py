"""Objects of the user's that are called at certain moments of a training, on every process."""

from __future__ import annotations

from typing import Any

from . import plugins
from .config import Config

_MOMENTS = {
    "on_start": ("step",),
    "on_step": ("step", "metrics"),
    "on_evaluation": ("step", "metrics", "state"),
    "on_end": ("step", "state"),
}
"""The methods that are called, with the names of their arguments."""


class Callbacks:
    """The callbacks of a job, in their order.

    Args:
        config: the job.

    Raises:
        UserError: one cannot be imported or made, or has no method that is ever called.
    """

    def __init__(self, config: Config) -> None:
        self._objects: list[Any] = []
        for number, section in enumerate(config.callbacks):
            key = f"callbacks.{number}"
            made = plugins.call(section.name, key, options=section.options, config=config)
            _check(made, section.name, key)
            self._objects.append(made)

    def __bool__(self) -> bool:
        return bool(self._objects)

    def call(self, moment: str, *arguments: Any) -> None:
        """Call the method named `moment` of each callback that has one. Errors of the callbacks are not caught."""
        for each in self._objects:
            if (method := getattr(each, moment, None)) is not None:
                method(*arguments)


def _check(made: Any, name: str, key: str) -> None:
    """Raise UserError unless a callback has a known method, all with the right arguments, and no unknown `on_` method."""
    known = ", ".join(f"{moment}({', '.join(words)})" for moment, words in _MOMENTS.items())
    if unknown := [each for each in dir(made) if each.startswith("on_") and each not in _MOMENTS]:
        plugins.refuse(name, key, f"has `{unknown[0]}`, which is never called; expected are {known}")
    has = [moment for moment in _MOMENTS if getattr(made, moment, None) is not None]
    if not has:
        plugins.refuse(name, key, f"returns {plugins.short(made)}, which has none of {known}")
    for moment in has:
        plugins.check_call(getattr(made, moment), name, key, _MOMENTS[moment], part=moment)
