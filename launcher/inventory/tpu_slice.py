"""Translate Google's names of accelerator types and topologies to slices. PURE."""

from __future__ import annotations

from podrun.runtime.contract import UserError

from ..pod.slices import Slice, parse_slice, slice_of_shape
from ..yamlfile.short import short

# Google's spellings that differ from slice names
_GENERATIONS = {"v5lite_pod": "v5litepod", "v5lite": "v5litepod", "v7x": "tpu7x"}


def slice_of_type(kind: str) -> Slice | None:
    """Return the slice of an accelerator type such as `v5litepod-16`; None if unknown."""
    generation, dash, number = kind.rpartition("-")
    try:
        slice = parse_slice(f"{_generation(generation)}{dash}{number}")
    except UserError:
        return None
    return slice if slice.kind == "tpu" and slice.slices == 1 else None


def slice_of_topology(generation: str, topology: str) -> Slice | None:
    """Return the slice of a generation such as `V5LITE_POD` and a topology; None if unknown."""
    shape = topology.partition("_")[0]  # removes the suffix of 4x4x8_untwisted
    return slice_of_shape(_generation(generation), shape)


def _generation(text: str) -> str:
    return _GENERATIONS.get(text.lower(), text.lower())


def unknown_type(where: str, kind: str) -> UserError:
    """Return the error about a type of TPU that podrun does not know. The message begins with `where` and the type."""
    return UserError(
        f"{where} {short(kind)}, which podrun does not know (`podrun slices` lists what it knows); name slice and hosts with "
        "--slice and --hosts"
    )
