"""The axis over the shares of a global batch, one share on each device: a model may average over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

SHARES = "batch"
"""Name of the axis. It is bound wherever a strategy calls a model."""


def of_one_share(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its batch is the only share of the global batch. This adds no operations."""
    return jax.vmap(function, in_axes=None, out_axes=None, axis_size=1, axis_name=SHARES)
