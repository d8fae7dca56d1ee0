"""Mistral 7B and models of the same form: Llama with a sliding window in all layers."""

from __future__ import annotations

from ...config.model import DecoderModel
from ..weight_files import ConfigJson
from .base import NAMES, Family, common, need, require, rope, rope_keys, sizes, windows


def section(config: ConfigJson) -> DecoderModel:
    """Return the section `model` for the config.json of a Mistral. Later Mistrals have no window."""
    require(config, hidden_act="silu", attention_bias=False)
    slides = config.get("sliding_window") is not None
    layers = windows(config, [slides] * need(config, "num_hidden_layers"))
    return DecoderModel.model_validate({**sizes(config, tied=False), **layers, "rope": rope(config)})


def config(section: DecoderModel) -> ConfigJson:
    """Return the keys of config.json for a Mistral. They describe layers of one kind only, so others are not a Mistral."""
    return {**common(section), **rope_keys(section), "hidden_act": "silu", "sliding_window": section.window}


FAMILY = Family("mistral", "MistralForCausalLM", section, config, NAMES)
