"""The parameters that a job trains, by its key `trainable`. The others have neither gradients nor optimizer state."""

from __future__ import annotations

import re
from typing import Any

import jax
import optax

from .contract import UserError
from .models.adapter import name_of
from .state import Params

_SHOWN = 8


def trained(params: Params, trainable: str | None) -> Any:
    """Return a tree of bool like `params`: True for parameters that are trained.

    Args:
        params: the parameters, or their shapes only.
        trainable: regular expression that matches the full names of those that are trained; None: all are.

    Raises:
        UserError: it matches none of them.
    """
    paths, structure = jax.tree.flatten_with_path(params)
    names = [name_of(path) for path, _ in paths]
    matches = [trainable is None or re.fullmatch(trainable, name) is not None for name in names]
    if not any(matches):
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise UserError(
            f"trainable {trainable!r} matches no parameter's full name, so nothing would be trained; the names are {shown}; "
            f"'.*{trainable}.*' matches anywhere in a name, and null trains all"
        )
    return jax.tree.unflatten(structure, matches)


def select(tree: Any, mask: Any) -> Any:
    """Return a tree of the trained parameters only, with `MaskedNode`, which has no arrays, for the others."""
    return jax.tree.map(lambda leaf, keep: leaf if keep else optax.MaskedNode(), tree, mask)


def merge(part: Any, params: Params) -> Params:
    """Return `params` with the trained parameters of `part`, a result of `select`."""
    return jax.tree.map(
        lambda mine, whole: whole if isinstance(mine, optax.MaskedNode) else mine,
        part,
        params,
        is_leaf=lambda node: isinstance(node, optax.MaskedNode),
    )
