"""Make the golden files of this folder: tiny models of transformers with random weights, and what they compute.

    pip install torch transformers numpy
    python tests/runtime/models/golden/make.py

For each family a NAME.json, the config.json as `save_pretrained` writes it, and a NAME.npz: `tokens`, `logits`, `loss`, and
by name of the parameter `weight:...` (float16, exact) and `gradient:...` (float32) of the loss. rope.json has the frequencies
of each type of RoPE, with the keys that they were made from, and greedy.json what each model writes after its `tokens`. Made
with torch 2.13 and transformers 5.24 on CPU, in float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FOLDER = Path(__file__).parent
BATCH, LENGTH = 2, 12
GREEDY = 48
"""Tokens that each model writes; the most likely one each time."""
SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def plain(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=5, rope_parameters=plain(1000.0))),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True, rope_parameters=plain(1e6))),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=6, rope_parameters=plain(1e6))),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config(
            **SIZES,
            head_dim=6,
            query_pre_attn_scalar=5,
            sliding_window=4,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=2.0,
            rope_parameters=plain(100.0),
        ),
    ),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **SIZES,
            head_dim=6,
            query_pre_attn_scalar=9,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": plain(10.0),
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0},
            },
        ),
    ),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=32,
            n_embd=16,
            n_layer=2,
            n_head=4,
            n_positions=64,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "yarn not rounded": {
        "factor": 8.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.25,
        "truncate": False,
    },
    "llama3": {k: v for k, v in LLAMA3.items() if k.endswith("factor")} | {"original_max_position_embeddings": 512},
}
ROPE_LENGTH = 4096
"""Length of the sequence: beyond max_position_embeddings, 2048."""


def write_model(name: str, seed: int) -> None:
    kind, config = MODELS[name]
    random = np.random.default_rng(seed)
    config._attn_implementation = "eager"
    model = kind(config).float().train()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            is_norm = ("norm" in key or "ln_" in key) and key.endswith("weight")
            mean = 1.0 if is_norm and "gemma" not in name else 0.0
            values = random.normal(mean, 0.3, parameter.shape).astype(np.float16)
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))
    tokens = torch.from_numpy(random.integers(0, config.vocab_size, (BATCH, LENGTH)))
    out = model(tokens, labels=tokens, use_cache=False)
    out.loss.backward()
    arrays = {"tokens": tokens.numpy().astype(np.int32), "logits": out.logits.detach().numpy()}
    arrays["loss"] = out.loss.detach().numpy()
    for key, parameter in model.named_parameters():
        arrays[f"weight:{key}"] = parameter.detach().numpy().astype(np.float16)
        arrays[f"gradient:{key}"] = parameter.grad.numpy()
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    config.architectures = [kind.__name__]
    (FOLDER / f"{name}.json").write_text(config.to_json_string())
    print(name, float(out.loss), np.abs(arrays["logits"]).max())


def write_greedy() -> None:
    rows = {}
    for name, (kind, config) in MODELS.items():
        config._attn_implementation = "eager"
        model = kind(config).float().eval()
        with np.load(FOLDER / f"{name}.npz") as arrays, torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(arrays[f"weight:{key}"].astype(np.float32)))
            tokens = torch.from_numpy(arrays["tokens"].astype(np.int64))
        ends = {"eos_token_id": None, "pad_token_id": 0}
        written = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=GREEDY, do_sample=False, **ends
        )
        rows[name] = written[:, LENGTH:].tolist()
    (FOLDER / "greedy.json").write_text(json.dumps(rows) + "\n")


def write_ropes() -> None:
    rows = {}
    for name, keys in ROPES.items():
        parameters = {"rope_type": name.split()[0], "rope_theta": 10_000.0, **keys}
        config = LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters=parameters)
        make = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        frequencies, factor = make(config, torch.device("cpu"), seq_len=ROPE_LENGTH)
        written = {key: getattr(config, key) for key in ("rope_parameters", "max_position_embeddings", "head_dim")}
        rows[name] = {
            "config": written,
            "length": ROPE_LENGTH,
            "factor": factor,
            "frequencies": frequencies.double().tolist(),
        }
    (FOLDER / "rope.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, name in enumerate(MODELS):
        write_model(name, seed=number)
    write_greedy()
    write_ropes()
