"""Qwen 3, the dense models: Llama with norms on queries and keys; the upper layers may have a sliding window."""

from __future__ import annotations

from ...config.model import DecoderModel
from ..weight_files import ConfigJson
from .base import NAMES, QK_NORMS, Family, common, need, require, rope, rope_keys, sizes, window_keys, windows


def section(config: ConfigJson) -> DecoderModel:
    """Return the section `model` for the config.json of a Qwen 3."""
    require(config, hidden_act="silu", attention_bias=False)
    slides = bool(config.get("use_sliding_window"))
    first = config.get("max_window_layers", 28)
    layers = windows(config, [slides and i >= first for i in range(need(config, "num_hidden_layers"))])
    parts = {"head_size": config.get("head_dim", 128), "qk_norm": True}
    return DecoderModel.model_validate({**sizes(config, tied=False), **layers, "rope": rope(config), **parts})


def config(section: DecoderModel) -> ConfigJson:
    """Return the keys of config.json for a Qwen 3."""
    slides = section.window is not None
    keys = {"hidden_act": "silu", "use_sliding_window": slides}
    return {**common(section), **rope_keys(section), **window_keys(section), **keys}


FAMILY = Family("qwen3", "Qwen3ForCausalLM", section, config, {**NAMES, **QK_NORMS})
