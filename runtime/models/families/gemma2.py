"""Gemma 2: norms before and after each part, soft caps, and a sliding window in every other layer."""

from __future__ import annotations

from ...config.model import DecoderModel
from ..weight_files import ConfigJson
from .base import (
    NAMES,
    POST_NORMS,
    Family,
    common,
    need,
    pre_attention_scalar,
    require,
    rope,
    rope_keys,
    sizes,
    window_keys,
    windows,
)


def section(config: ConfigJson) -> DecoderModel:
    """Return the section `model` for the config.json of a Gemma 2."""
    require(config, hidden_activation="gelu_pytorch_tanh", attention_bias=False)
    require(config, use_bidirectional_attention=(False, None))
    return DecoderModel.model_validate(
        {
            **sizes(config, tied=True),
            **windows(config, [i % 2 == 0 for i in range(need(config, "num_hidden_layers"))]),
            "head_size": config.get("head_dim", 256),
            "mlp": "geglu",
            "norm": "rms_plus_1",
            "post_norms": True,
            "rope": rope(config),
            "attention_scale": config.get("query_pre_attn_scalar", 256) ** -0.5,
            "attention_soft_cap": config.get("attn_logit_softcapping", 50.0),
            "logit_soft_cap": config.get("final_logit_softcapping", 30.0),
            "scale_embedding": True,
        }
    )


def config(section: DecoderModel) -> ConfigJson:
    """Return the keys of config.json for a Gemma 2."""
    return {
        **common(section),
        **rope_keys(section),
        **window_keys(section),
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": pre_attention_scalar(section),
        "attn_logit_softcapping": section.attention_soft_cap,
        "final_logit_softcapping": section.logit_soft_cap,
    }


FAMILY = Family("gemma2", "Gemma2ForCausalLM", section, config, {**NAMES, **POST_NORMS})
