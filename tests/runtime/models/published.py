"""The golden models as folders, as `save_pretrained` of transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.config.model import DecoderModel
from podrun.runtime.export.formats import write_safetensors
from podrun.runtime.models.decoder import Decoder

Array = np.ndarray[Any, Any]

Params = dict[str, Any]

VOCABULARY = 32

GOLDEN = Path(__file__).parent / "golden"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return config


def arrays_of(name: str, kind: str = "weight") -> dict[str, Array]:
    """Return the weights or gradients by their names in the files, float32."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        named = {key.partition(":"): value for key, value in arrays.items() if key.startswith(f"{kind}:")}
    return {key[2]: value.astype(np.float32) for key, value in named.items()}


def greedy_of(name: str) -> tuple[Array, Array]:
    """Return prompts, int32[B, T], and what transformers writes after them, int32[B, N]."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return arrays["tokens"], np.array(json.loads((GOLDEN / "greedy.json").read_text())[name])


def write_folder(folder: Path, config: dict[str, Any], arrays: dict[str, Array], files: int = 1) -> Path:
    """Write config.json and the arrays, dealt out to so many files."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if files == 1:
        write_arrays(folder / "model.safetensors", arrays)
        return folder
    where = {name: f"model-{i % files + 1:05}-of-{files:05}.safetensors" for i, name in enumerate(arrays)}
    for file in sorted({*where.values()}):
        write_arrays(folder / file, {name: array for name, array in arrays.items() if where[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def write_arrays(file: Path, arrays: dict[str, Array]) -> None:
    described = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    write_safetensors(file, described, arrays.__getitem__, {"format": "pt"})


def write_tokenizer(file: Path, letters: str, first: str = "") -> None:
    """Write a tokenizer.json with a token for each letter, of which a `first` one stands before each text."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    words.decoder = tokenizers.decoders.Fuse()
    if first:
        words.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, letters.index(first))]
        )
    words.save(str(file))


# --- what models compute ---


def logits(section: DecoderModel, params: Params, tokens: Array) -> jax.Array:
    found: jax.Array = Decoder(section, VOCABULARY, jnp.dtype("float32")).apply({"params": params}, tokens)
    return found


def loss(params: Params, section: DecoderModel, tokens: Array) -> tuple[jax.Array, jax.Array]:
    """Return the mean loss, and the logits."""
    found = logits(section, params, tokens)
    log_p = jax.nn.log_softmax(found[:, :-1])
    return -jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1).mean(), found


def closely(found: Any, expected: Array, name: str = "") -> None:
    """Equal to 1e-5 of the largest number; gradients of GPT-2's biases of keys are 0 but for rounding."""
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(np.abs(expected).max(), 1e-2), err_msg=name)
