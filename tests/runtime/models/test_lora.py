"""`model.lora`: low-rank additions that are trained under every strategy, equal to PEFT's, and exported to it.

The golden files are made by golden/make_lora.py, which needs torch and PEFT.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from podrun.runtime.checkpoint.metadata import JobInputs
from podrun.runtime.checkpoint.same_job import obstacles
from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint, Config, saved_config
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.export.export import export
from podrun.runtime.generate.source import load
from podrun.runtime.models.adapter import name_of
from podrun.runtime.models.pretrained import load_here, load_weights, published_config, with_architecture
from podrun.runtime.models.weight_files import read_header
from podrun.runtime.optim import updates_of
from podrun.runtime.parallel import layout
from podrun.runtime.trainable import trained

from ...tiers import mostly_long
from ..strategies import SECTIONS, make, train
from .published import GOLDEN, arrays_of, closely, config_of, loss, write_arrays, write_folder, write_tokenizer

Array = np.ndarray[Any, Any]
Params = dict[str, Any]

TARGETS: dict[str, Any] = {"llama": ["q_proj", "v_proj", "down_proj"], "gpt2": "all-linear"}
MATRICES = {"llama": ("attn.q", "attn.v", "mlp.down"), "gpt2": ("attn.q", "attn.o", "mlp.up", "mlp.down")}
DIVIDED = {
    "jit model 2": {"name": "jit", "mesh": {"model": 2}},
    "explicit model 2 fsdp 2": {"name": "explicit", "mesh": {"model": 2, "fsdp": 2}},
}


@pytest.fixture(params=["llama", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The golden model of a family."""
    name: str = request.param
    return write_folder(tmp_path / name, config_of(name), arrays_of(name))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "llama", config_of("llama"), arrays_of("llama"))


def job(folder: Path, lora: Params | None, **keys: Any) -> Config:
    """A job with the golden tokens as its text."""
    tokens = np.load(GOLDEN / f"{folder.name}.npz")["tokens"]
    text = folder.parent / "tokens.bin"
    np.tile(tokens.reshape(-1), 8).astype(np.uint16).tofile(text)
    job = {
        "task": "language_model",
        "model": {"name": "decoder", "init_from": str(folder), "context": 12, "lora": lora},
        "data": {"name": "tokens", "path": str(text), "vocabulary": 32},
        "steps": 3,
        "batch_size": 4,
        "optimizer": {"name": "adam", "learning_rate": 0.01, "eps": 1e-3},
        **keys,
    }
    return with_architecture(Config.model_validate_json(Config.model_validate(job).model_dump_json()))


def start(one: Any) -> Any:
    """The first state of a strategy."""
    section = one.config.model
    return one.init_from(lambda form: load_weights(section, published_config(one.config) or {}, form, lambda: None))


def arrays(tree: Any) -> dict[str, Array]:
    return {name_of(path): np.array(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


# --- against PEFT ---


def with_adapter(params: Params, name: str, kind: str) -> Params:
    """Put PEFT's arrays of a kind in the place of A and B."""
    with np.load(GOLDEN / f"lora_{name}.npz") as stored:
        given = {key.partition(":")[2]: value for key, value in stored.items() if key.startswith(f"{kind}:")}
    layers = "model.layers.{}." if name == "llama" else "transformer.h.{}."
    names = {"attn.o": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"} | (
        {"attn.q": "self_attn.q_proj", "attn.v": "self_attn.v_proj", "mlp.down": "mlp.down_proj"}
        if name == "llama"
        else {}
    )
    flat = {tuple(key.split(".")): value for key, value in arrays(params).items()}
    block = ("layers", "block_0")

    def put(matrix: str, theirs: str, rows: slice = slice(None), columns: slice = slice(None)) -> None:
        part, ours = matrix.split(".")
        whole = [f"base_model.model.{layers.format(i)}{theirs}.lora_" for i in range(2)]
        a = [given[f"{key}A.weight"][columns].T for key in whole]
        b = [given[f"{key}B.weight"][rows, columns].T for key in whole]
        flat[*block, part, f"{ours}_lora", "a"], flat[*block, part, f"{ours}_lora", "b"] = np.stack(a), np.stack(b)

    for matrix in MATRICES[name]:
        if name == "gpt2" and matrix == "attn.q":
            for number, letter in enumerate("qkv"):
                put(
                    f"attn.{letter}",
                    "attn.c_attn",
                    slice(16 * number, 16 * number + 16),
                    slice(3 * number, 3 * number + 3),
                )
        else:
            put(matrix, names[matrix])
    nested: Params = {}
    for path, value in flat.items():
        inner = nested
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return nested


def test_as_peft(folder: Path) -> None:
    """Loss and gradients are those of PEFT; so are the exported arrays, and the loss of the merged model."""
    name = folder.name
    config = job(folder, {"rank": 3, "alpha": 4, "targets": TARGETS[name]})
    section: Any = config.model
    state = start(make(config, load_dataset(config)))
    params = with_adapter(state.params, name, "adapter")
    assert jax.tree.structure(params) == jax.tree.structure(state.params)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, state.params)
    with np.load(GOLDEN / f"lora_{name}.npz") as stored:
        tokens, expected = stored["tokens"], stored["loss"]
    compute = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    (found, _), gradients = compute(params, section, tokens)
    assert abs(float(found) - expected) < 1e-5
    wanted, of_lora = arrays(with_adapter(gradients, name, "gradient")), arrays(gradients)
    for key in (key for key in wanted if "_lora" in key):
        closely(of_lora[key], wanted[key], key)

    checkpoints = Checkpoints(
        folder.parent / "run/checkpoints", Checkpoint(), inputs=JobInputs(published=published_config(config))
    )
    checkpoints.save(3, {"step": np.int32(3), "params": jax.tree.map(np.array, params)}, 0, config, b"", None)
    checkpoints.close()
    made = folder.parent / "adapter"
    export(folder.parent / "run", None, "peft", str(made))
    golden = json.loads((GOLDEN / f"lora_{name}.json").read_text())
    golden["target_modules"].sort()
    given = json.loads((made / "adapter_config.json").read_text())
    assert given == {key: golden[key] for key in given} | {"base_model_name_or_path": str(folder)}
    with np.load(GOLDEN / f"lora_{name}.npz") as stored:
        theirs = {key.partition(":")[2]: value for key, value in stored.items() if key.startswith("adapter:")}
    ours = read_header(made / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        np.testing.assert_array_equal(ours[key].part((slice(None),) * 2), value)

    export(folder.parent / "run", None, "hf", str(folder.parent / "merged"))
    for kind in ("merged", "adapter"):
        read: Any = load_here(folder.parent / kind)
        assert abs(float(jax.jit(loss, static_argnums=1)(read[1], read[0].model, tokens)[0]) - expected) < 1e-5


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of PEFT beside that of its base model, the golden Llama."""
    home = tmp_path_factory.mktemp("peft")
    write_folder(home / "llama", config_of("llama"), arrays_of("llama"))
    config = json.loads((GOLDEN / "lora_llama.json").read_text())
    (home / "adapter").mkdir()
    (home / "adapter/adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "llama"}))
    with np.load(GOLDEN / "lora_llama.npz") as stored:
        named = {key.partition(":")[2]: value for key, value in stored.items() if key.startswith("adapter:")}
    write_arrays(home / "adapter/adapter_model.safetensors", named)
    return home / "adapter"


def test_text_with_an_adapter(adapter: Path) -> None:
    """The tokenizer is that of the base model, whose folder is beside the adapter's."""
    write_tokenizer(adapter.parent / "llama/tokenizer.json", "abcdefghijklmnopqrstuvwxyz ,.!?-")
    source, about = load(adapter, None, None)
    assert (
        about == f"the adapter in {adapter}, added to {adapter.parent / 'llama'}" and source.tokenizer.vocabulary == 32
    )


ADAPTER_MISTAKES: dict[str, tuple[Params, str]] = {
    "no base": ({"base_model_name_or_path": None}, r"has no base_model_name_or_path: write there the folder"),
    "a base of the Hub": (
        {"base_model_name_or_path": "meta/Llama"},
        r"base model meta/Llama is not on this machine: .*hf download meta/Llama --local-dir Llama$",
    ),
    "a base in a bucket": (
        {"base_model_name_or_path": "gs://bucket/llama"},
        r"its base model is gs://bucket/llama: copy that to a folder, and write the folder in base_model_name_or_path",
    ),
    "another method": (
        {"peft_type": "IA3"},
        r"does not apply an adapter of PEFT with peft_type 'IA3'; add it to its model",
    ),
    "DoRA": ({"use_dora": True}, r"with use_dora True; .*merge_and_unload"),
    "another base": ({"init_lora_weights": "pissa_niter_4"}, r"with init_lora_weights 'pissa_niter_4'"),
    "a text for alpha": ({"lora_alpha": "x"}, r"adapter_config\.json is not as PEFT writes it: could not convert"),
    "a pattern": ({"alpha_pattern": {"(": 1}}, r"adapter_config\.json is not as PEFT writes it: missing \)"),
}


@pytest.mark.parametrize("mistake", ADAPTER_MISTAKES)
def test_a_mistake_in_an_adapter(adapter: Path, tmp_path: Path, mistake: str) -> None:
    changes, message = ADAPTER_MISTAKES[mistake]
    change_adapter(adapter, tmp_path, changes)
    with pytest.raises(UserError, match=message):
        load_here(tmp_path)


def change_adapter(adapter: Path, folder: Path, changes: Params) -> None:
    shutil.copytree(adapter, folder, dirs_exist_ok=True)
    file = folder / "adapter_config.json"
    base = {"base_model_name_or_path": str(adapter.parent / "llama")}
    file.write_text(json.dumps({**json.loads(file.read_text()), **base, **changes}))


def test_the_scale_of_an_adapter(adapter: Path, tmp_path: Path) -> None:
    """The alpha of a pattern goes before that of all; rsLoRA divides by the root of the rank, 3."""
    before = arrays(load_here(adapter.parent / "llama")[1])["layers.block_0.attn.q.kernel"]
    added = arrays(load_here(adapter)[1])["layers.block_0.attn.q.kernel"] - before
    for number, (changes, factor) in enumerate(
        [({"use_rslora": True}, 3**0.5), ({"alpha_pattern": {"q_proj": 8}}, 2.0)]
    ):
        change_adapter(adapter, tmp_path / str(number), changes)
        now = arrays(load_here(tmp_path / str(number))[1])["layers.block_0.attn.q.kernel"]
        np.testing.assert_allclose(now - before, factor * added, atol=1e-6)
    assert np.abs(added).max() > 1e-3


def test_an_adapter_of_another_model(adapter: Path, tmp_path: Path) -> None:
    change_adapter(adapter, tmp_path / "adapter", {})
    file, key = (
        tmp_path / "adapter/adapter_model.safetensors",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
    )
    whole = {name: array.part(()) for name, array in read_header(file).items()}
    for named, message in (
        (
            {**whole, key: whole[key][:, 1:]},
            r"A and B of model\.layers\.0\.self_attn\.q_proj have the shapes \[3, 15\] and",
        ),
        ({name: value for name, value in whole.items() if name != key}, r"have the shapes \[0, 0\] and \[16, 3\]"),
        ({key.replace("layers.0", "layers.7"): whole[key]}, r"the base model has no matrix for it"),
    ):
        write_arrays(tmp_path / "new", {name: np.array(value) for name, value in named.items()})
        (tmp_path / "new").replace(file)
        with pytest.raises(UserError, match=message):
            load_here(tmp_path / "adapter")


def test_some_matrices_of_one_that_is_fused(tmp_path: Path) -> None:
    """GPT-2's values and the attention's projection: PEFT would take every `c_proj`, unless its name is longer."""
    folder = write_folder(tmp_path / "gpt2", config_of("gpt2"), arrays_of("gpt2"))
    config = job(folder, {"rank": 3, "alpha": 1.5, "targets": ["v_proj", "o_proj"]})
    state = start(make(config, load_dataset(config)))
    checkpoints = Checkpoints(
        tmp_path / "run/checkpoints", Checkpoint(), inputs=JobInputs(published=published_config(config))
    )
    params = jax.tree.map(lambda x: np.asarray(x) + 1, state.params)
    checkpoints.save(3, {"step": np.int32(3), "params": params}, 0, config, b"", None)
    checkpoints.close()
    export(tmp_path / "run", None, "peft", str(tmp_path / "adapter"))
    given = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert (given["r"], given["lora_alpha"], given["rank_pattern"]) == (3, 1.5, {})
    assert given["target_modules"] == ["attn.c_proj", "c_attn"]
    ours = read_header(tmp_path / "adapter/adapter_model.safetensors")
    b = ours["base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"].part((slice(None),) * 2)
    assert not b[:32].any()
    np.testing.assert_array_equal(b[32:], params["layers"]["block_0"]["attn"]["v_lora"]["b"][1].T)


# --- training ---


@pytest.mark.parametrize(
    "name",
    mostly_long(
        [*SECTIONS, *DIVIDED], lambda _, name: name == "jit model 2", lambda _, name: name in ("pmap", "jit fsdp 2")
    ),
)
def test_training(llama: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only A and B change and have moments; the first loss is the model's own, and all are those of one device."""
    monkeypatch.setattr(layout, "SMALL", 20)
    lora = {"rank": 4, "alpha": 8}
    keys: Params = {"accumulate": 1 if name in DIVIDED else 2} if name != "single" else {}
    config = job(llama, lora, batch_size=8, ema=0.9, parallel={**SECTIONS, **DIVIDED}[name], **keys)
    data = load_dataset(config)
    golden = np.load(GOLDEN / "llama.npz")
    batches = [{"tokens": np.tile(golden["tokens"], (4, 1))}] * 3
    one = make(config, data)
    state = start(one)
    before = arrays(state.params)
    alone = make(job(llama, lora, batch_size=8, ema=0.9, parallel="single"), data)
    first = start(alone)
    for key, value in arrays(first.params).items():
        assert before[key].tobytes() == value.tobytes(), key
    _, expected = train(alone, first, batches)
    state, found = train(one, state, batches)
    losses = [row["loss"] for row in found]
    assert losses == pytest.approx([row["loss"] for row in expected], rel=1e-5)
    assert losses[0] == pytest.approx(float(golden["loss"]), abs=1e-5) and losses[2] < losses[1] < losses[0]
    after = arrays(state.params)
    changed = {key for key, value in before.items() if after[key].tobytes() != value.tobytes()}
    added = {key for key in before if "_lora" in key}
    assert changed == added and len(added) == 14
    moments = {key.partition(".mu.")[2] for key in arrays(state.opt_state) if ".mu." in key}
    assert moments == added


def test_first_values(llama: Path) -> None:
    """A is uniform within 1 / sqrt(inputs), as PEFT's is, another one for each seed; B is zero."""
    both = []
    for seed in (0, 1):
        config = job(llama, {"rank": 64, "targets": "down_proj"}, seed=seed, parallel="single")
        made = arrays(start(make(config, load_dataset(config))).params)
        assert not made["layers.block_0.mlp.down_lora.b"].any()
        both.append(made["layers.block_0.mlp.down_lora.a"])
    assert 0.98 < np.abs(both[0]).max() * 24**0.5 <= 1 and abs(both[0].std() * 72**0.5 - 1) < 0.03
    assert not np.array_equal(*both)


@pytest.mark.long
def test_dropout(llama: Path) -> None:
    """It changes the loss in training once B is not zero, and is the same under other strategies."""
    runs = []
    for name, dropout in (("jit", 0.5), ("shard_map", 0.5), ("jit", 0.0)):
        config = job(llama, {"dropout": dropout}, parallel=name)
        one = make(config, load_dataset(config))
        batch = {"tokens": np.tile(np.load(GOLDEN / "llama.npz")["tokens"], (2, 1))}
        runs.append([row["loss"] for row in train(one, start(one), [batch] * 3)[1]])
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)
    assert runs[0][0] == pytest.approx(runs[2][0], rel=1e-6) and runs[0][2] != pytest.approx(runs[2][2], rel=1e-3)


def test_base_in_bfloat16(llama: Path, tmp_path: Path) -> None:
    """The base is read into bfloat16; exported, it is float32 again, with what was trained added to it."""
    config = job(llama, {"rank": 2}, precision={"frozen": "bfloat16"}, parallel={"name": "jit", "mesh": {"fsdp": 2}})
    one = make(config, load_dataset(config))
    state = start(one)
    kinds = {leaf.dtype.name for path, leaf in jax.tree.leaves_with_path(state.params) if "lora" in name_of(path)}
    others = {leaf.dtype.name for path, leaf in jax.tree.leaves_with_path(state.params) if "lora" not in name_of(path)}
    assert (kinds, others) == ({"float32"}, {"bfloat16"})
    folder, published = tmp_path / "run" / "checkpoints", published_config(config)
    checkpoints = Checkpoints(folder, Checkpoint(), one.saves_in_parts, inputs=JobInputs(published=published))
    checkpoints.save(1, one.savable(state), 0, config, b"", None)
    checkpoints.close()
    for form in ("hf", "peft"):
        export(tmp_path / "run", None, form, str(tmp_path / form))
    whole = arrays(load_here(tmp_path / "hf")[1])
    for name, value in arrays(load_here(llama)[1]).items():
        assert whole[name].dtype == np.float32
        np.testing.assert_array_equal(whole[name], value.astype(jnp.bfloat16).astype(np.float32))


def test_what_is_trained_and_decayed(llama: Path) -> None:
    """A and B are decayed, as PEFT's are by an optimizer with decay; Muon takes them as matrices."""
    for optimizer, treatment in (
        ({"name": "adamw", "weight_decay": 1.0}, "decayed"),
        ({"name": "muon"}, "muon"),
    ):
        config = job(llama, {"targets": ["q_proj"]}, optimizer=optimizer, parallel="jit")
        params = jax.eval_shape(lambda: make(config, load_dataset(config)).initial.shapes.params)  # noqa: B023
        updates = dict(zip(arrays(trained(params, None)), updates_of(config, params, ("layers",)), strict=True))
        assert {key for key, value in updates.items() if value != "frozen"} == {
            "layers.block_0.attn.q_lora.a",
            "layers.block_0.attn.q_lora.b",
        }
        assert set(updates.values()) == {"frozen", treatment}


# --- mistakes ---


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"lora": {"targets": ["c_attn"]}},
            r"'c_attn' is no matrix of a layer; give all-linear, or some of q_proj, k_proj",
        ),
        ({"lora": {"targets": "all"}}, r"'all' is no matrix of a layer; give all-linear, or some of q_proj"),
        ({"lora": {"targets": []}}, r"no matrices, so nothing would be trained; give all-linear, or"),
        ({"lora": {"targets": [["q_proj"]]}}, r"\['q_proj'\] is no matrix of a layer"),
        ({"lora": {"rank": 0}}, r"lora\.rank\n.*greater than 0"),
        ({"lora": {"alpha": float("inf")}}, r"lora\.alpha\n.*finite"),
        ({"lora": {"r": 8}}, r"lora\.r\n.*not permitted"),
        ({"lora": {}, "init_from": None}, r"without init_from these would be random; give init_from"),
    ],
)
def test_mistakes(model: Params, message: str) -> None:
    keys: Params = {"steps": 1, "batch_size": 4, "model": {"name": "decoder", "init_from": "llama", **model}}
    with pytest.raises(ValidationError, match=message):
        Config.model_validate(keys)


def test_mistakes_beside_other_keys(tmp_path: Path) -> None:
    """No matrix of this name in this model, and `trainable` beside LoRA."""
    folder = write_folder(tmp_path / "gpt2", config_of("gpt2"), arrays_of("gpt2"))
    with pytest.raises(
        UserError, match=r"do not fit .*config\.json: lora\.targets has gate_proj, but the MLP .* no gate"
    ):
        job(folder, {"targets": ["gate_proj", "q_proj"]})
    with pytest.raises(
        ValidationError, match=r"trainable: model\.lora trains its own parameters, and no others; remove"
    ):
        job(folder, {}, trainable=".*norm.*")


def test_another_lora_is_another_job(llama: Path) -> None:
    before: Any = {"config": saved_config(job(llama, {"rank": 8})), "fingerprint": "", "shapes": {}}
    rows = obstacles(before, job(llama, {"rank": 4}), b"", {})
    assert rows == [("model.lora.rank", "8 in the checkpoint, 4 in this job")]
    del before["config"]["model"]["lora"]  # saved before there was LoRA
    assert not obstacles(before, job(llama, None), b"", {})
    assert Config.model_validate(before["config"]).model.is_complete
