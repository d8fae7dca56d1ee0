"""Tell what each parameter is, by its name and its shape: which are decayed, and which are hidden matrices.

A bias or a norm is known by the name of the array or of its module: in a stack of layers it has two dimensions too. An axis
over which layers are stacked, as by `nn.scan` or `jax.vmap`, is no dimension of a weight.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import jax

from .models.adapter import name_of

Shape = tuple[int, ...]

_BIASES = {"b", "bias", "biases"}
_VECTORS = _BIASES | {"scale", "scales", "offset", "offsets", "shift", "gain", "gamma", "beta"}
_SHORT_BIAS = re.compile(r"b[a-z]?\d*")  # b1, bq, by
_NORMS = {"ln", "bn", "gn", "rms", "norms", "normalization", "normalisation"}
_TABLES = {"wte", "wpe", "emb", "embs", "table", "vocab"}
_HEADS = {"head", "logits", "classifier", "readout"}


class Role(Enum):
    """Role of a parameter in its model, as far as its name says."""

    VECTOR = "bias or norm"
    EMBEDDING = "embedding"
    HEAD = "head"
    OTHER = "other"


@dataclass(frozen=True)
class Weight:
    """One parameter."""

    name: str
    """Its whole name, with dots."""
    shape: Shape
    role: Role
    stacked: int = 0
    """Number of leading axes over which layers are stacked."""

    @property
    def dimensions(self) -> int:
        """Return the number of dimensions in one layer."""
        return len(self.shape) - self.stacked

    @property
    def is_decayed(self) -> bool:
        """Return whether weight decay applies by default: to two or more dimensions, except biases and norms."""
        return self.dimensions >= 2 and self.role != Role.VECTOR

    @property
    def is_hidden_matrix(self) -> bool:
        """Return whether Muon's authors give it to Muon: a matrix of one layer, neither embedding nor head."""
        return self.dimensions == 2 and self.role == Role.OTHER


def weights(params: Any) -> Any:
    """Return a `Weight` for each parameter, in the structure of `params`, whose leaves need shapes only."""
    leaves, structure = jax.tree.flatten_with_path(params)
    paths = [tuple(name_of((key,)) for key in path) for path, _ in leaves]
    shapes = [tuple(leaf.shape) for _, leaf in leaves]
    siblings: dict[Shape | tuple[str, ...], set[Shape]] = defaultdict(set)
    for path, shape in zip(paths, shapes, strict=True):
        siblings[path[:-1]].add(shape)
    every = [
        Weight(name_of(key), shape, _role(path, alone=len(siblings[path[:-1]]) == 1))
        for (key, _), path, shape in zip(leaves, paths, shapes, strict=True)
    ]
    return jax.tree.unflatten(structure, _without_stacks(every, paths))


def _role(path: tuple[str, ...], alone: bool) -> Role:
    """Return the role by the last names of a path; `alone`: all arrays of the module have one shape, as those of norms."""
    parts = [part for name in path for part in name.split("/")]  # haiku has whole paths as keys
    leaf, module = _words(parts[-1]), _words(parts[-2]) if len(parts) > 1 else []
    if leaf == ["kernel"]:
        return Role.HEAD if _is_head(module) else Role.EMBEDDING if _is_table(module) else Role.OTHER
    if leaf and (leaf[0] in _BIASES or leaf[-1] in _VECTORS or _SHORT_BIAS.fullmatch(parts[-1])):
        return Role.VECTOR
    if _is_norm(leaf) or (alone and _is_norm(module)):
        return Role.VECTOR
    if _is_head(leaf) or _is_head(module):
        return Role.HEAD
    return Role.EMBEDDING if _is_table(leaf) or _is_table(module) else Role.OTHER


def _words(name: str) -> list[str]:
    """Return the words of `LayerNorm_0` or `ln_1` without numbers: `layer`, `norm`; `ln`."""
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def _is_norm(words: list[str]) -> bool:
    return any(word in _NORMS or word.endswith("norm") for word in words)


def _is_table(words: list[str]) -> bool:
    return any(word in _TABLES or word.startswith("embed") for word in words)


def _is_head(words: list[str]) -> bool:
    return bool(words) and (words[-1] in _HEADS or any(word.startswith("unembed") for word in words))


def _without_stacks(every: list[Weight], paths: list[tuple[str, ...]]) -> list[Weight]:
    """Find the axes over which layers are stacked: from the whole model down to the parts of a layer."""
    inside: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, path in enumerate(paths):
        for depth in range(len(path)):
            inside[path[:depth]].append(number)
    for folder in sorted(inside, key=len):
        while _is_stack([every[number] for number in inside[folder]]):
            for number in inside[folder]:
                every[number] = replace(every[number], stacked=every[number].stacked + 1)
    return every


def _is_stack(part: list[Weight]) -> bool:
    """Return whether all arrays of a part share a leading axis that its biases and norms would not have in one layer."""
    shapes = [weight.shape[weight.stacked :] for weight in part]
    if any(len(shape) < 2 for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
        return False
    vectors = [shape for shape, weight in zip(shapes, part, strict=True) if weight.role == Role.VECTOR]
    # Without layers a bias may be a row or a column, as [1, n] or [n, 1].
    return any(shape[0] > 1 and math.prod(shape[1:]) > 1 for shape in vectors)
