"""Llama 2 and 3, and models of the same form."""

from __future__ import annotations

from ...config.model import DecoderModel
from ..weight_files import ConfigJson
from .base import NAMES, Family, common, require, rope, rope_keys, sizes


def section(config: ConfigJson) -> DecoderModel:
    """Return the section `model` for the config.json of a Llama."""
    require(config, hidden_act="silu", attention_bias=False, mlp_bias=False)
    return DecoderModel.model_validate({**sizes(config, tied=False), "rope": rope(config)})


def config(section: DecoderModel) -> ConfigJson:
    """Return the keys of config.json for a Llama."""
    return {**common(section), **rope_keys(section), "hidden_act": "silu", "mlp_bias": False}


FAMILY = Family("llama", "LlamaForCausalLM", section, config, NAMES)
