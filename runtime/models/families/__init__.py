"""Families of published models that `Decoder` can be, by `model_type` in their config.json."""

from __future__ import annotations

from importlib import import_module

from ...contract import UserError
from .base import Family, Json

_FILES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}


def family_of(config: Json) -> Family:
    """Return the family of a model from its config.json. Raises UserError if it is none of these."""
    kind = config.get("model_type")
    if kind not in _FILES:
        raise UserError(f"config.json: model_type is {kind!r}; model decoder can be {', '.join(_FILES)}")
    family: Family = import_module(f".{_FILES[kind]}", __name__).FAMILY
    return family
