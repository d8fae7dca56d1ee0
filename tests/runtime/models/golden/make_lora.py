"""Make the golden adapters of this folder: LoRA of PEFT with random A and B on the tiny models that make.py has made.

    pip install torch transformers peft numpy
    python tests/runtime/models/golden/make_lora.py

For each model a lora_NAME.json, the adapter_config.json of `save_pretrained`, and a lora_NAME.npz: `tokens`, `logits`,
`loss`, and by its name in adapter_model.safetensors `adapter:...` and `gradient:...` of the loss, of each A and B. The
queries, keys and values of GPT-2 are one matrix; it gets three times the rank, and a B of three blocks along a diagonal,
as podrun exports them. Made with torch 2.13, transformers 5.24 and PEFT 0.21 on CPU, in float32.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make import FOLDER, MODELS
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

RANK, ALPHA = 3, 4
ADAPTERS: dict[str, dict[str, Any]] = {
    "llama": {"target_modules": ["q_proj", "v_proj", "down_proj"]},
    "gpt2": {
        "target_modules": ["c_attn", "c_proj", "c_fc"],
        "rank_pattern": {"c_attn": 3 * RANK},
        "alpha_pattern": {"c_attn": 3 * ALPHA},
        "fan_in_fan_out": True,
    },
}


def write_adapter(name: str, seed: int) -> None:
    kind, config = MODELS[name]
    config._attn_implementation = "eager"
    base = kind(config).float()
    random = np.random.default_rng(seed)
    with np.load(FOLDER / f"{name}.npz") as arrays, torch.no_grad():
        tokens = torch.from_numpy(arrays["tokens"].astype(np.int64))
        for key, parameter in base.named_parameters():
            parameter.copy_(torch.from_numpy(arrays[f"weight:{key}"].astype(np.float32)))
    lora = LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, bias="none", **ADAPTERS[name])
    model = get_peft_model(base, lora).train()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                values = random.normal(0, 0.3, parameter.shape)
                if "c_attn.lora_B" in key:
                    values *= np.kron(np.eye(3), np.ones((len(values) // 3, RANK)))
                parameter.copy_(torch.from_numpy(values))
    out = model(tokens, labels=tokens, use_cache=False)
    out.loss.backward()
    written = {"tokens": tokens.numpy().astype(np.int32), "logits": out.logits.detach().numpy()}
    written["loss"] = out.loss.detach().numpy()
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            written[f"gradient:{key.replace('.default', '')}"] = parameter.grad.numpy()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for key, value in load_file(Path(folder, "adapter_model.safetensors")).items():
            written[f"adapter:{key}"] = value.numpy()
        config_file = json.loads(Path(folder, "adapter_config.json").read_text())
    np.savez_compressed(FOLDER / f"lora_{name}.npz", **written)
    (FOLDER / f"lora_{name}.json").write_text(json.dumps(config_file, indent=1, sort_keys=True) + "\n")
    print(name, float(out.loss))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, name in enumerate(ADAPTERS):
        write_adapter(name, seed=100 + number)
