"""GPT-2: learned positions, LayerNorm and biases. Its files have queries, keys and values as one array, not transposed."""

from __future__ import annotations

from ...config.model import DecoderModel
from ..weight_files import ConfigJson
from .base import Family, need, require

_NAMES: dict[str, str | tuple[str, ...]] = {
    "transformer.wte.weight": "embed.embedding",
    "transformer.wpe.weight": "positions.embedding",
    "transformer.h.{}.ln_1.weight": "layers_{}.attn_norm.scale",
    "transformer.h.{}.ln_1.bias": "layers_{}.attn_norm.bias",
    "transformer.h.{}.attn.c_attn.weight": tuple(f"layers_{{}}.attn.{x}.kernel" for x in "qkv"),
    "transformer.h.{}.attn.c_attn.bias": tuple(f"layers_{{}}.attn.{x}.bias" for x in "qkv"),
    "transformer.h.{}.attn.c_proj.weight": "layers_{}.attn.o.kernel",
    "transformer.h.{}.attn.c_proj.bias": "layers_{}.attn.o.bias",
    "transformer.h.{}.ln_2.weight": "layers_{}.mlp_norm.scale",
    "transformer.h.{}.ln_2.bias": "layers_{}.mlp_norm.bias",
    "transformer.h.{}.mlp.c_fc.weight": "layers_{}.mlp.up.kernel",
    "transformer.h.{}.mlp.c_fc.bias": "layers_{}.mlp.up.bias",
    "transformer.h.{}.mlp.c_proj.weight": "layers_{}.mlp.down.kernel",
    "transformer.h.{}.mlp.c_proj.bias": "layers_{}.mlp.down.bias",
    "transformer.ln_f.weight": "final_norm.scale",
    "transformer.ln_f.bias": "final_norm.bias",
}


def section(config: ConfigJson) -> DecoderModel:
    """Return the section `model` for the config.json of a GPT-2."""
    require(config, activation_function=("gelu_new", "gelu_pytorch_tanh"), tie_word_embeddings=True)
    require(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return DecoderModel.model_validate(
        {
            "layers": need(config, "n_layer"),
            "width": need(config, "n_embd"),
            "heads": need(config, "n_head"),
            "mlp_width": config.get("n_inner"),
            "context": need(config, "n_positions"),
            "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
            "initializer_range": config.get("initializer_range", 0.02),
            "positions": "learned",
            "norm": "layer",
            "mlp": "gelu",
            "bias": "all",
        }
    )


def config(section: DecoderModel) -> ConfigJson:
    """Return the keys of config.json for a GPT-2."""
    return {
        "n_layer": section.layers,
        "n_embd": section.width,
        "n_head": section.heads,
        "n_inner": section.hidden_width,
        "n_positions": section.context,
        "layer_norm_epsilon": section.norm_epsilon,
        "initializer_range": section.initializer_range,
        "activation_function": "gelu_new",
    }


FAMILY = Family("gpt2", "GPT2LMHeadModel", section, config, _NAMES, is_transposed=False, prefix="transformer.")
