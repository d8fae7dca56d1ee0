"""Qwen 2 and 2.5: Llama with biases on queries, keys and values; the upper layers may have a sliding window."""

from __future__ import annotations

from ...config.model import DecoderModel
from .base import NAMES, QKV_BIASES, Family, Json, need, require, rope, sizes, windows


def section(config: Json) -> DecoderModel:
    """Return the section of a Qwen 2."""
    require(config, hidden_act="silu")
    slides = bool(config.get("use_sliding_window"))
    first = config.get("max_window_layers", 28)
    layers = windows(config, [slides and i >= first for i in range(need(config, "num_hidden_layers"))])
    return DecoderModel.model_validate({**sizes(config, tied=False), **layers, "rope": rope(config), "bias": "qkv"})


FAMILY = Family(section, {**NAMES, **QKV_BIASES})
