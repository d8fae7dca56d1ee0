"""Names of a tree's arrays in a checkpoint: keys, fields and indices, joined by dots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from .contract import UserError
from .wording import first_rows

Place = tuple[str, ...]
"""Path to an array by keys, fields and indices: ("layers", "0", "kernel")."""
Arrays = dict[str, Any]
"""Nested dictionaries of arrays."""
_SHOWN = 8  # problems in a message


def places(tree: Any, what: str) -> list[tuple[Place, Any]]:
    """Return the leaves of a tree with their paths.

    Raises UserError if two leaves would have the same name in a checkpoint. `what` names the tree in the message, for example
    `the state`.
    """
    _check_keys(tree, what)
    leaves = [
        (tuple(jax.tree_util.keystr((key,), simple=True) for key in path), leaf)
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]
    refuse(f"{what} cannot be saved", _ambiguous([place for place, _ in leaves]))
    return leaves


def check_parameters(params: Any, model_state: Any) -> None:
    """Raise UserError if a model's initial parameters or state cannot be trained or saved. Leaves may be shapes only."""
    problems = []
    for place, leaf in places(params, "the parameters"):
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and not jax.numpy.issubdtype(dtype, np.inexact):
            problems.append(
                f"{'.'.join(place)} is an array of {dtype}, which has no gradient; it belongs in the model's state"
            )
    problems += [
        f"{'.'.join(place)} is of size zero ({list(leaf.shape)}); leave it out"
        for tree, what in ((params, "the parameters"), (model_state, "the model's state"))
        for place, leaf in places(tree, what)
        if 0 in getattr(leaf, "shape", ())
    ]
    refuse("the model cannot be trained", problems)


def refuse(what: str, problems: list[str]) -> None:
    """Raise UserError if `problems` is not empty. The message begins with `what` and lists them."""
    if len(problems) == 1:
        raise UserError(f"{what}: {problems[0]}")
    if problems:
        raise UserError("\n".join([f"{what}:", *(f"  {row}" for row in first_rows(problems, _SHOWN))]))


def is_writable(name: str) -> bool:
    """Return whether UTF-8 can encode a name. It cannot encode half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _check_keys(tree: Any, what: str) -> None:
    """Raise UserError for a dictionary whose keys JAX cannot sort, or that are equal as text, such as 0 and "0"."""
    if isinstance(tree, dict):
        seen: dict[str, object] = {}
        for key in tree:
            if str(key) in seen:
                refuse(
                    f"{what} cannot be saved",
                    [f"a dictionary has the keys {seen[str(key)]!r} and {key!r}; give one of them another name"],
                )
            seen[str(key)] = key
        if len({type(key) for key in tree}) > 1:
            shown = ", ".join(ascii(key) for key in [*tree][:4])
            refuse(
                f"{what} cannot be saved",
                [f"a dictionary has keys of several types ({shown}); give them one type, such as text"],
            )
        children: Iterable[Any] = tree.values()
    else:
        children = [
            child for child in jax.tree.leaves(tree, is_leaf=lambda node: node is not tree) if child is not tree
        ]
    for child in children:
        _check_keys(child, what)


def _ambiguous(found: list[Place]) -> list[str]:
    """Return a problem for each array whose name is invalid in a checkpoint, or is taken by an earlier array."""
    problems = []
    seen: dict[str, Place] = {}
    all_places = {*found}
    for place in found:
        name = ".".join(place)
        if not is_writable(name):
            problems.append(f"{name!a} has half a character in its name; give it another")
            continue
        # orbax uses the name as the path of a folder, so a slash at the end makes no difference.
        same_name = seen.setdefault(name if name.endswith("/") else f"{name}/", place)
        folder = next((place[:n] for n in range(1, len(place)) if place[:n] in all_places), None)
        if same_name is not place or folder is not None:
            problems.append(
                f"two arrays would be called {name}: {_spelled(folder or same_name)} and {_spelled(place)}; "
                "give one of them another name"
            )
    return problems


def _spelled(place: Place) -> str:
    return "".join(f"[{key!r}]" for key in place) or "the tree itself"
