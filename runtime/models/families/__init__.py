"""Families of published models that `Decoder` can be, by `model_type` in their config.json."""

from __future__ import annotations

from importlib import import_module
from math import isclose
from typing import Any

from ...config.base import Tunable
from ...config.model import DecoderModel
from ...contract import UserError
from ..weight_files import ConfigJson
from .base import Family, SectionKeys

_FILES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gpt2": "gpt2",
}
FREE = {
    *("name", "vocabulary", "context", "lora"),
    *(k for k, field in DecoderModel.model_fields.items() if any(isinstance(mark, Tunable) for mark in field.metadata)),
}
"""Keys that may have other values than in a config.json."""


def family_of(config: ConfigJson) -> Family:
    """Return the family of a model from its config.json. Raises UserError if podrun does not know the family."""
    kind = config.get("model_type")
    if kind not in _FILES:
        raise UserError(f"config.json: model_type is {kind!r}; model decoder can be {', '.join(_FILES)}")
    family: Family = import_module(f".{_FILES[kind]}", __name__).FAMILY
    return family


def family_that_is(section: DecoderModel) -> Family:
    """Return the first family that includes this model. Raises UserError, which names the nearest family, if none does."""
    nearest: tuple[str, dict[str, str]] | None = None
    for kind in _FILES:
        family = family_of({"model_type": kind})
        others = differences(section, family.section(family.config(section)))
        if not others:
            return family
        if nearest is None or len(others) < len(nearest[1]):
            nearest = kind, others
    assert nearest is not None
    rows = "; ".join(nearest[1].values())
    raise UserError(
        f"the model is in no family of transformers that podrun knows; the nearest is {nearest[0]}, but {rows}"
    )


def differences(section: DecoderModel, other: DecoderModel) -> dict[str, str]:
    """Return the keys that make two models differ, each with `model.key is A, not B`, where A is the value in `section`."""
    ours, theirs = _plain(section), _plain(other)
    return {key: f"model.{key} is {ours[key]}, not {theirs[key]}" for key in ours if not _same(ours[key], theirs[key])}


def _plain(section: DecoderModel) -> SectionKeys:
    """Return the section with values in place of defaults that depend on other keys."""
    values = {key: value for key, value in section.model_dump().items() if key not in FREE}
    slides = "sliding" in section.layer_types
    return {
        **values,
        "kv_heads": section.groups,
        "head_size": section.size,
        "mlp_width": section.hidden_width,
        "attention_scale": section.attention_scale or section.size**-0.5,
        "layer_types": ["sliding" if section.is_sliding(layer) else "full" for layer in range(section.layers)],
        "sliding_rope": (section.sliding_rope or section.rope).model_dump() if slides else None,
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other, rel_tol=1e-6)
    return bool(one == other)
