"""Qwen 3, the dense models: Llama with norms on queries and keys; the upper layers may have a sliding window."""

from __future__ import annotations

from ...config.model import DecoderModel
from .base import NAMES, QK_NORMS, Family, Json, need, require, rope, sizes, windows


def section(config: Json) -> DecoderModel:
    """Return the section of a Qwen 3."""
    require(config, hidden_act="silu", attention_bias=False)
    slides = bool(config.get("use_sliding_window"))
    first = config.get("max_window_layers", 28)
    layers = windows(config, [slides and i >= first for i in range(need(config, "num_hidden_layers"))])
    parts = {"head_size": config.get("head_dim", 128), "qk_norm": True}
    return DecoderModel.model_validate({**sizes(config, tied=False), **layers, "rope": rope(config), **parts})


FAMILY = Family(section, {**NAMES, **QK_NORMS})
