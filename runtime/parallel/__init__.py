"""Ways of being parallel, by the name in the config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import plugins

if TYPE_CHECKING:
    from .base import Strategy


def strategy_class(name: str) -> type[Strategy]:
    """A user's strategy is a subclass of `podrun.runtime.parallel.base.Strategy`."""
    if ":" in name:
        loaded: type[Strategy] = plugins.load(name, "parallel")
        return loaded
    from .pmap import Pmap

    return Pmap
