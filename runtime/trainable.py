"""The parameters that a job trains, by its key `trainable`. The others have neither gradients nor optimizer state."""

from __future__ import annotations

import re
from typing import Any

import jax

from .contract import UserError
from .models.adapter import name_of
from .state import Params
from .wording import first_names

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
        shown = first_names(names, _SHOWN)
        raise UserError(
            f"trainable {trainable!r} matches no parameter's full name, so nothing would be trained; the names are {shown}; "
            f"'.*{trainable}.*' matches anywhere in a name, and null trains all"
        )
    return jax.tree.unflatten(structure, matches)
