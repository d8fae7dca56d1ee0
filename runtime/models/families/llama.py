"""Llama 2 and 3, and models of the same form."""

from __future__ import annotations

from ...config.model import DecoderModel
from .base import NAMES, Family, Json, require, rope, sizes


def section(config: Json) -> DecoderModel:
    """Return the section of a Llama."""
    require(config, hidden_act="silu", attention_bias=False, mlp_bias=False)
    return DecoderModel.model_validate({**sizes(config, tied=False), "rope": rope(config)})


FAMILY = Family(section, NAMES)
