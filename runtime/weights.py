"""Infer each parameter's role from its name and shape, for weight decay and Muon.

Biases and norms are recognised by the name of the array or its module, because in stacked layers they have two dimensions as
well. A leading axis over which layers are stacked, as by `nn.scan` or `jax.vmap`, does not count as a dimension of a weight.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
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
_LORA = "lora"
_HEADS = {"head", "logits", "classifier", "readout"}


class Role(Enum):
    """Role of a parameter in its model, inferred from its name."""

    VECTOR = "bias or norm"
    EMBEDDING = "embedding"
    HEAD = "head"
    OTHER = "other"


@dataclass(frozen=True)
class Weight:
    """A parameter's name, shape and role."""

    name: str
    """Full name, with dots."""
    shape: Shape
    role: Role
    stacked: int = 0
    """Number of leading axes that stack layers."""

    @property
    def dimensions(self) -> int:
        """Return the number of dimensions of one layer's array."""
        return len(self.shape) - self.stacked

    @property
    def is_decayed(self) -> bool:
        """Return whether weight decay applies by default: to two or more dimensions, except biases and norms."""
        return self.dimensions >= 2 and self.role != Role.VECTOR

    @property
    def is_hidden_matrix(self) -> bool:
        """Return whether Muon applies, as its authors advise: to matrices that are neither embeddings nor heads."""
        return self.dimensions == 2 and self.role == Role.OTHER


def weights(params: Any, stacked: Sequence[str] = ()) -> Any:
    """Return a tree like `params` with a `Weight` for each parameter.

    Args:
        params: the parameters, or their shapes only.
        stacked: names of the outermost parameters that are stacked over layers, if the model declares them
            (`Model.stacked`).
    """
    leaves, structure = jax.tree.flatten_with_path(params)
    paths = [tuple(name_of((key,)) for key in path) for path, _ in leaves]
    shapes = [tuple(leaf.shape) for _, leaf in leaves]
    siblings: dict[Shape | tuple[str, ...], set[Shape]] = defaultdict(set)
    for path, shape in zip(paths, shapes, strict=True):
        siblings[path[:-1]].add(shape)
    every = [
        Weight(name_of(key), shape, _role(path, alone=len(siblings[path[:-1]]) == 1), int(path[0] in stacked))
        for (key, _), path, shape in zip(leaves, paths, shapes, strict=True)
    ]
    return jax.tree.unflatten(structure, _without_stacks(every, paths))


def _role(path: tuple[str, ...], alone: bool) -> Role:
    """Infer the role from the last names of a path. `alone`: all arrays of the module have one shape, as in norms."""
    parts = [part for name in path for part in name.split("/")]  # haiku's keys are paths
    leaf, module = _words(parts[-1]), _words(parts[-2]) if len(parts) > 1 else []
    if _LORA in leaf or _LORA in module:  # `lora_b` is no bias
        return Role.OTHER
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
    """Split a name into lower-case words without numbers: `LayerNorm_0` gives `layer`, `norm`."""
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def _is_norm(words: list[str]) -> bool:
    return any(word in _NORMS or word.endswith("norm") for word in words)


def _is_table(words: list[str]) -> bool:
    return any(word in _TABLES or word.startswith("embed") for word in words)


def _is_head(words: list[str]) -> bool:
    return bool(words) and (words[-1] in _HEADS or any(word.startswith("unembed") for word in words))


def _without_stacks(every: list[Weight], paths: list[tuple[str, ...]]) -> list[Weight]:
    """Set `stacked` of each weight: look for stacked layers from the whole model down to the innermost modules."""
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
    """Return whether a part of the model is stacked: all arrays share a leading axis, and biases or norms have two axes."""
    shapes = [weight.shape[weight.stacked :] for weight in part]
    if any(len(shape) < 2 for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
        return False
    vectors = [shape for shape, weight in zip(shapes, part, strict=True) if weight.role == Role.VECTOR]
    # A bias of a single layer may be a row or a column, [1, n] or [n, 1].
    return any(shape[0] > 1 and math.prod(shape[1:]) > 1 for shape in vectors)
