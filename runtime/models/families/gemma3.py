"""Gemma 3, the text models: norms on queries and keys, and a sliding window with a RoPE of its own in five layers of six."""

from __future__ import annotations

from ...config.model import DecoderModel
from ...contract import UserError
from ..weight_files import ConfigJson
from .base import (
    NAMES,
    POST_NORMS,
    QK_NORMS,
    Family,
    SectionKeys,
    common,
    first,
    need,
    pre_attention_scalar,
    require,
    rope_mapping,
    rope_section,
    sizes,
    window_keys,
    windows,
)


def section(config: ConfigJson) -> DecoderModel:
    """Return the section `model` for the config.json of a Gemma 3."""
    require(config, hidden_activation="gelu_pytorch_tanh", attention_bias=False)
    require(config, use_bidirectional_attention=(False, None))
    every = config.get("sliding_window_pattern", 6)
    if every < 1:
        raise UserError(f"config.json: sliding_window_pattern is {every}, expected at least 1; is the file damaged?")
    layers = windows(config, [(i + 1) % every != 0 for i in range(need(config, "num_hidden_layers"))])
    return DecoderModel.model_validate(
        {
            **sizes(config, tied=True),
            **layers,
            **_ropes(config, "sliding" in layers["layer_types"]),
            "head_size": config.get("head_dim", 256),
            "mlp": "geglu",
            "norm": "rms_plus_1",
            "post_norms": True,
            "qk_norm": True,
            "attention_scale": config.get("query_pre_attn_scalar", 256) ** -0.5,
            "attention_soft_cap": config.get("attn_logit_softcapping"),
            "logit_soft_cap": config.get("final_logit_softcapping"),
            "scale_embedding": True,
        }
    )


def _ropes(config: ConfigJson, slides: bool) -> SectionKeys:
    """Return the sections of full and of sliding layers. `rope_scaling` is that of full ones, in files of any version."""
    given = config.get("rope_parameters") or {}
    if unknown := given.keys() - {"full_attention", "sliding_attention"}:
        raise UserError(
            f"config.json: rope_parameters has {', '.join(sorted(unknown))}; in this family it has full_attention and "
            "sliding_attention, with the keys of RoPE in each"
        )
    full = {**(given.get("full_attention") or {}), **(config.get("rope_scaling") or {})}
    ropes = {"rope": rope_section(config, full, first(config.get("rope_theta"), 1e6))}
    if slides:
        sliding = given.get("sliding_attention") or {}
        ropes["sliding_rope"] = rope_section(config, sliding, first(config.get("rope_local_base_freq"), 1e4))
    return ropes


def config(section: DecoderModel) -> ConfigJson:
    """Return the keys of config.json for a Gemma 3."""
    full, sliding = rope_mapping(section.rope), rope_mapping(section.sliding_rope or section.rope)
    return {
        **common(section),
        **window_keys(section),
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": pre_attention_scalar(section),
        "attn_logit_softcapping": section.attention_soft_cap,
        "final_logit_softcapping": section.logit_soft_cap,
    }


FAMILY = Family("gemma3_text", "Gemma3ForCausalLM", section, config, {**NAMES, **POST_NORMS, **QK_NORMS})
