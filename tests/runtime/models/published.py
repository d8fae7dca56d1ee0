"""The golden models as folders, as `save_pretrained` of transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from podrun.runtime.config.model import DecoderModel
from podrun.runtime.export.formats import write_safetensors
from podrun.runtime.models.decoder import Decoder
from podrun.runtime.models.families.base import Family, check_names, sources

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


def params_from(family: Family, config: DecoderModel, arrays: dict[str, Array]) -> Params:
    """Return the parameters of `Decoder` as nested dictionaries, from whole arrays of a published model by name."""
    check_names(family, config, arrays.keys(), "the model")
    params = {}
    for path, source in sources(family, config).items():
        parts = [np.split(arrays[name], source.among, axis=-1)[source.number] for name in source.names]
        whole = [part.T if source.is_transposed else part for part in parts]
        params[path] = np.stack(whole) if source.is_stacked else whole[0][: config.context if source.is_cut else None]
    nested: Params = unflatten_dict(params)
    return nested


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
