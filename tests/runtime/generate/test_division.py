"""A model that is divided over devices writes the text of the whole one, and no device has all of its parameters."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.devices import Devices
from podrun.runtime.generate.division import division_of, first_devices
from podrun.runtime.generate.source import load
from podrun.runtime.generate.text import Source, Wish, write
from podrun.runtime.models.generation import Sampling, writer_of

from ...tiers import mostly_long
from ..models.published import FAMILIES, arrays_of, config_of, write_folder, write_tokenizer
from ..training import train

LETTERS = "abcdefghijklmnopqrstuvwxyz ,.!?-"
GREEDY = Sampling(temperature=0)
PROMPTS = ["a bottle", "wall", "if one should fall"]


def alone() -> Devices:
    return Devices(tuple(jax.devices()[:1]))


def texts(source: Source, sampling: Sampling = GREEDY) -> list[str]:
    written = [""] * len(PROMPTS)

    def say(number: int, text: str | None) -> None:
        written[number] += text or ""

    write(source, PROMPTS, Wish(30, sampling, seed=3), say)
    assert all(written)
    return written


def share_of(source: Source) -> float:
    """The largest share of the parameters' bytes that a device has."""
    leaves = jax.tree.leaves(source.params)
    held: dict[Any, int] = {}
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values()) / sum(leaf.nbytes for leaf in leaves)


@pytest.mark.parametrize("name", mostly_long(FAMILIES, lambda _, name: name == "llama"))
def test_published_models(tmp_path: Path, name: str) -> None:
    """Of every family, and all that transformers computes of it: `load` takes all four devices here."""
    folder = write_folder(tmp_path / name, config_of(name), arrays_of(name))
    write_tokenizer(folder / "tokenizer.json", LETTERS)
    divided, whole = load(folder, None, None)[0], load(folder, None, None, alone())[0]
    assert divided.division is not None and whole.division is None
    assert texts(divided) == texts(whole)


JOB: dict[str, Any] = {
    "task": "language_model",
    "steps": 2,
    "batch_size": 8,
    "sample": {"tokens": 0},
    "optimizer": {"name": "adamw", "learning_rate": 1e-2},
}
MODELS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "axis model": ({"name": "decoder", "layers": 4, "heads": 4, "width": 128, "context": 64}, (1, 4)),
    "both axes": ({"name": "decoder", "layers": 4, "heads": 4, "kv_heads": 2, "width": 128, "context": 64}, (2, 2)),
    "fsdp": ({"name": "decoder", "layers": 4, "heads": 4, "kv_heads": 1, "width": 128, "context": 64}, (4, 1)),
    "without a cache": ({"name": "gpt2", "layers": 2, "heads": 4, "width": 128, "context": 64}, (1, 4)),
}
"""Keys of the model, and the sizes of fsdp and model on four devices."""


@pytest.mark.parametrize("name", mostly_long(MODELS, lambda _, name: name == "both axes"))
def test_checkpoints(tmp_path: Path, name: str) -> None:
    """By the axes that the model's heads allow: the same greedy text, and the same drawn text."""
    keys, sizes = MODELS[name]
    (tmp_path / "text.txt").write_text("".join(f"{n} green bottles, and if one should fall\n" for n in range(200)))
    train(tmp_path / "run", **JOB, model=keys, data={"name": "text", "path": str(tmp_path / "text.txt")})
    divided, whole = load(tmp_path / "run", None, None)[0], load(tmp_path / "run", None, None, alone())[0]
    assert divided.division is not None
    assert (divided.division.partition.fsdp, divided.division.partition.model) == sizes
    assert share_of(whole) == 1 and share_of(divided) < 0.4  # its small arrays are whole
    assert texts(divided) == texts(whole)
    drawn = Sampling(temperature=1.5, top_p=0.95)
    assert texts(divided, drawn) == texts(whole, drawn)


def test_one_layer_is_whole_at_a_time(tmp_path: Path) -> None:
    """The program that reads prompts needs less memory for temporaries than the parameters would take."""
    config = {**config_of("llama"), "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64}
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/config.json").write_text(json.dumps(config))
    write_tokenizer(tmp_path / "llama/tokenizer.json", LETTERS)
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes_of(config).items()}
    folder = write_folder(tmp_path / "wide", config, arrays)
    write_tokenizer(folder / "tokenizer.json", LETTERS)
    divided, whole = load(folder, None, None)[0], load(folder, None, None, alone())[0]
    assert divided.division is not None and divided.division.partition.fsdp == 4
    assert texts(divided) == texts(whole)
    read = jax.jit(partial(writer_of(divided.model).read, space=64))
    with divided.division.computing():
        compiled = read.lower(divided.params, np.zeros((1, 32), np.int32), np.array([32], np.int32)).compile()
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(divided.params))
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.argument_size_in_bytes < 0.3 * total
    assert memory.temp_size_in_bytes < 0.5 * total, (memory.temp_size_in_bytes, total)


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The arrays of a Llama by their published names."""
    width, hidden, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    size, groups, vocabulary = config["head_dim"], config["num_key_value_heads"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, width),
        "model.norm.weight": (width,),
    }
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocabulary, width)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (heads * size, width),
            f"{at}.self_attn.k_proj.weight": (groups * size, width),
            f"{at}.self_attn.v_proj.weight": (groups * size, width),
            f"{at}.self_attn.o_proj.weight": (width, heads * size),
            f"{at}.mlp.gate_proj.weight": (hidden, width),
            f"{at}.mlp.up_proj.weight": (hidden, width),
            f"{at}.mlp.down_proj.weight": (width, hidden),
            f"{at}.input_layernorm.weight": (width,),
            f"{at}.post_attention_layernorm.weight": (width,),
        }
    return shapes


@pytest.mark.parametrize(("rules", "sizes"), [({}, (4, 1)), ({"other": 1}, (4, 1)), ({"kernel": 1}, (1, 4))])
def test_a_model_of_the_users_own(rules: dict[str, int], sizes: tuple[int, int]) -> None:
    """Its matrices are divided over the axis `model` only by its own rules; otherwise over fsdp."""
    config = Config.model_validate({**JOB, "model": {"name": "net:make"}})
    model: Any = SimpleNamespace(partition_rules=rules, stacked=())
    params = {"layer": {"kernel": jax.ShapeDtypeStruct((256, 256), np.float32)}}
    division = division_of(config, model, params, Devices(tuple(jax.devices()[:4])))
    assert division is not None and (division.partition.fsdp, division.partition.model) == sizes
    assert any(division.sharding("layer.kernel", (256, 256)).spec)


def test_the_first_devices() -> None:
    """Those of a slice that is smaller than the machine; fewer than it needs are refused."""
    assert [device.id for device in first_devices(2).all] == [0, 1]
    assert first_devices(None) == Devices.here()
    with pytest.raises(UserError, match=r"--slice has 99 devices, but JAX has \d+ of cpu here"):
        first_devices(99)
