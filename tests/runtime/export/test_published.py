"""`podrun export --format hf`: a folder of transformers, from one and back, bit by bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.checkpoint.metadata import JobInputs
from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint, Config
from podrun.runtime.contract import UserError
from podrun.runtime.data.saved_tokenizer import Saved
from podrun.runtime.export.export import export
from podrun.runtime.export.published import write_shards
from podrun.runtime.models.families import family_of
from podrun.runtime.models.pretrained import published_config, with_architecture
from podrun.runtime.models.weight_files import stored_arrays

from ..models.published import FAMILIES, arrays_of, config_of, params_from, write_folder

TOKENIZER = json.dumps({"model": {"vocab": {"a": 0}, "merges": []}})


def job(**model: Any) -> Config:
    keys: dict[str, Any] = {"steps": 1, "batch_size": 4, "model": {"name": "decoder", **model}}
    return with_architecture(Config.model_validate(keys))


def save(workdir: Path, config: Config, params: Any, tokenizer: Saved | None = None) -> Path:
    checkpoints = Checkpoints(
        workdir / "checkpoints", Checkpoint(), inputs=JobInputs(tokenizer, None, published_config(config))
    )
    state = {"step": np.int32(3), "params": jax.tree.map(np.ascontiguousarray, params)}
    checkpoints.save(3, state, 0, config, b"", None)
    checkpoints.close()
    return workdir


@pytest.mark.parametrize("name", FAMILIES)
def test_from_a_folder_and_back(tmp_path: Path, name: str) -> None:
    """The arrays are the same, and so is config.json, also if it is made from the job's keys."""
    folder = write_folder(tmp_path / "given", config_of(name), arrays_of(name))
    context = 64 if name == "gpt2" else 16  # learned positions have that length
    config: Any = job(init_from=folder, context=context)
    params = params_from(family_of(config_of(name)), config.model, arrays_of(name))
    trained = save(tmp_path / "train", config, params, {"name": "bpe", "file": TOKENIZER})
    section = config.model.model_dump(exclude={"init_from"})
    plain = save(tmp_path / "plain", job(**section), params)
    shutil.rmtree(folder)
    for workdir in (trained, plain):
        report = export(workdir, None, "hf", str(tmp_path / f"{workdir.name}.hf"))
        found = stored_arrays(Path(report.file))
        assert {key: array.dtype for key, array in found.items()} == dict.fromkeys(arrays_of(name), "F32")
        for key, value in arrays_of(name).items():
            whole = (slice(None),) * value.ndim
            np.testing.assert_array_equal(found[key].part(whole), value)
    given, made = (json.loads((tmp_path / f"{one}.hf" / "config.json").read_text()) for one in ("train", "plain"))
    version = given | {"transformers_version": config_of(name)["transformers_version"]}
    assert version == config_of(name) | {"dtype": "float32"}
    assert made["architectures"] == given["architectures"]
    again = family_of(made).section(made)
    assert again.context == context and made["vocab_size"] == 32
    assert (tmp_path / "train.hf/tokenizer.json").read_text() == TOKENIZER
    assert json.loads((tmp_path / "train.hf/generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert (
        not (tmp_path / "plain.hf/tokenizer.json").exists()
        and not (tmp_path / "plain.hf/generation_config.json").exists()
    )


def test_shards_and_their_index(tmp_path: Path) -> None:
    """No file has more bytes of arrays than allowed, unless one array has; the index names the file of each."""
    arrays = {name: np.full(size, size, np.float32) for name, size in (("a", 3), ("b", 2), ("c", 9), ("d", 1))}
    write_shards(tmp_path, {k: (v.shape, v.dtype) for k, v in arrays.items()}, arrays.__getitem__, most=20)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    file = "model-{:05}-of-00003.safetensors".format
    assert index == {
        "metadata": {"total_size": 60},
        "weight_map": {"a": file(1), "b": file(1), "c": file(2), "d": file(3)},
    }
    assert {name: array.part((slice(None),)).tolist() for name, array in stored_arrays(tmp_path).items()} == {
        name: array.tolist() for name, array in arrays.items()
    }


def test_what_has_no_family(tmp_path: Path) -> None:
    """The error names the nearest family and what differs; a folder that exists stays as it is."""
    llama = family_of(config_of("llama"))
    section = llama.section(config_of("llama"))
    params = params_from(llama, section, arrays_of("llama"))
    saved = save(tmp_path / "a", job(**section.model_dump(exclude={"init_from"}) | {"mlp": "geglu"}), params)
    with pytest.raises(
        UserError, match=r"in no family of .*; the nearest is llama, but model\.mlp is geglu, not swiglu$"
    ):
        export(saved, None, "hf", str(tmp_path / "out"))
    members = save(tmp_path / "b", job(**section.model_dump()), jax.tree.map(lambda x: np.stack([x, x]), params))
    with pytest.raises(UserError, match="the checkpoint has an ensemble"):
        export(members, None, "hf", str(tmp_path / "out"))
    keys: Any = {"steps": 1, "batch_size": 4}
    gpt2 = save(tmp_path / "c", Config.model_validate(keys), {"w": np.ones(3, np.float32)})
    with pytest.raises(UserError, match="writes model decoder, but the job has model gpt2"):
        export(gpt2, None, "hf", str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="out exists; choose another name"):
        export(saved, None, "hf", str(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "out"]
