"""`model.init_from`: a folder of transformers gives the architecture and the first weights, under every strategy."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pydantic import ValidationError

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.base_env import base_env
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.config import Config
from podrun.runtime.config.model import DecoderModel
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.models import model_vocabulary
from podrun.runtime.models.families import family_of, family_that_is
from podrun.runtime.models.pretrained import load_here, load_weights, published_config, with_architecture
from podrun.runtime.optim import make_optimizer
from podrun.runtime.parallel import make_strategy
from podrun.runtime.tasks import make_task

from ..strategies import SECTIONS, assert_identical
from ..training import train
from .published import FAMILIES, GOLDEN, arrays_of, config_of, params_from, write_arrays, write_folder

Json = dict[str, Any]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden Llama and its tokens; a test that changes the folder has a copy."""
    here = tmp_path_factory.mktemp("published")
    tokens = np.load(GOLDEN / "llama.npz")["tokens"]
    np.tile(tokens.reshape(-1), 8).astype(np.uint16).tofile(here / "tokens.bin")
    return write_folder(here / "llama", config_of("llama"), arrays_of("llama"))


def keys(folder: Path, **model: Any) -> Json:
    """A job whose examples are as long as the golden ones."""
    return {
        "task": "language_model",
        "model": {"name": "decoder", "init_from": str(folder), "context": 11, **model},
        "data": {"name": "tokens", "path": str(folder.parent / "tokens.bin"), "vocabulary": 32},
        "steps": 1,
        "batch_size": 4,
    }


def job(folder: Path, model: Json | None = None, **others: Any) -> Config:
    """The job after its way to the hosts as JSON, with the architecture."""
    config = Config.model_validate({**keys(folder, **(model or {})), **others})
    return with_architecture(Config.model_validate_json(config.model_dump_json()))


def loaded(config: Config, form: Any) -> Any:
    assert isinstance(config.model, DecoderModel)
    return load_weights(config.model, published_config(config) or {}, form, lambda: None)


LARGE = """
import json, sys
from pathlib import Path
import jax, numpy as np
from podrun.runtime.config import Config
from podrun.runtime.contract import Workdir, WorkerEnv
from podrun.runtime.train import Trainer
from podrun.runtime.worker.progress import Reporter

def resident():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
    return int(line.split()[1]) >> 10

work = Path(sys.argv[1])
work.mkdir()
Workdir(work).token("run", 0).touch()
env = WorkerEnv("run", 0, "host-0", 0, 1, (0,), "cpu-1x1", work)
trainer = Trainer(Config.model_validate(json.loads(sys.argv[2])), env, Workdir(work), Reporter(work / "events"))
jax.jit(lambda: 1)()
before = resident()
trainer.start()
arrays = sum(array.nbytes for array in jax.tree.leaves(trainer._state)) >> 20
print(arrays, resident() - before - arrays)
"""


@pytest.mark.long
def test_buffers_of_the_files_do_not_stay_in_memory(tmp_path: Path) -> None:
    """Workers on CPUs keep freed memory for the next step, but what reading takes is needed only once."""
    config = {**config_of("llama"), "vocab_size": 1 << 16, "hidden_size": 1024, "num_hidden_layers": 1, "head_dim": 8}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16, "tie_word_embeddings": True}
    shapes = {"embed_tokens": (1 << 16, 1024), "norm": (1024,), "layers.0.input_layernorm": (1024,)}
    shapes |= {f"layers.0.self_attn.{name}_proj": (16, 1024) for name in "qkv"}
    shapes |= {"layers.0.self_attn.o_proj": (1024, 16), "layers.0.post_attention_layernorm": (1024,)}
    shapes |= {
        "layers.0.mlp.gate_proj": (16, 1024),
        "layers.0.mlp.up_proj": (16, 1024),
        "layers.0.mlp.down_proj": (1024, 16),
    }
    folder = tmp_path / "llama"
    arrays = {f"model.{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    write_folder(folder, config, arrays)
    np.zeros(1000, np.uint16).tofile(tmp_path / "tokens.bin")
    data = {"name": "tokens", "path": str(tmp_path / "tokens.bin"), "vocabulary": 1 << 16}
    given = {**keys(folder), "optimizer": {"name": "sgd"}, "data": data, "parallel": "single", "sample": {"tokens": 0}}
    env = {**os.environ, **base_env(simulated_pod(parse_slice("cpu-1x1")), (0,))}
    command = [sys.executable, "-c", LARGE, str(tmp_path / "work"), json.dumps(given)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    state, more = map(int, done.stdout.split()[-2:])  # MB
    assert state > 250 and more < 150


@pytest.mark.parametrize("name", ["pmap", "jit fsdp 2", "explicit fsdp 4", "single"])
def test_the_first_loss(llama: Path, name: str) -> None:
    """It is that of transformers, and the state can be trained: its arrays are where the strategy wants them."""
    config = job(llama, parallel=SECTIONS[name])
    data = load_dataset(config)
    strategy = make_strategy(config, make_task(config, data), *make_optimizer(config, 1))
    state = strategy.init_from(lambda form: loaded(config, form))
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.sharding), strategy.abstract_state()
    )
    golden = np.load(GOLDEN / "llama.npz")
    tokens = np.tile(golden["tokens"], (2, 1))
    weights = np.ones((4, 11), np.float32)
    sums = strategy.evaluate(state, strategy.shard({"tokens": tokens, "weights": weights}))
    assert abs(float(sums["loss"] / sums["count"]) - golden["loss"]) < 2e-6


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_by_shards(tmp_path: Path, name: str) -> None:
    """From two files, in the three types; each device reads its part, of rows or of columns."""
    arrays = {key: value.astype("float16") for key, value in arrays_of(name).items()}
    vector, matrix = (next(key for key, value in arrays.items() if value.ndim == axes) for axes in (1, 2))
    arrays[vector] = arrays[vector].astype("float32")
    arrays[matrix] = arrays[matrix].astype(jax.numpy.bfloat16)
    whole = {key: value.astype(np.float32) for key, value in arrays.items()}
    if name == "gpt2":  # as older files are
        arrays = {key.removeprefix("transformer."): value for key, value in arrays.items()}
        arrays["h.0.attn.bias"] = np.ones((1, 1, 64, 64), np.float16)
    folder = write_folder(tmp_path / name, config_of(name), arrays, files=2)
    section: Any = job(folder).model
    expected = params_from(family_of(config_of(name)), section, whole)
    mesh = Mesh(np.array(jax.devices()), ("parts",))
    for axis in (0, 1):
        form = jax.tree.map(lambda x: _divided(x.shape, axis, mesh), expected)  # noqa: B023
        found = load_weights(section, config_of(name), form, lambda: None)
        assert jax.tree.map(lambda x: x.sharding, found) == jax.tree.map(lambda x: x.sharding, form)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def _divided(shape: tuple[int, ...], axis: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
    """Return a form that is divided along an axis if it can be."""
    fits = axis < len(shape) and shape[axis] % 4 == 0
    spec = PartitionSpec(*[None] * axis, "parts") if fits else PartitionSpec()
    return jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec))


def test_a_run_resumes_without_the_folder(llama: Path, tmp_path: Path) -> None:
    """The second run has a checkpoint; the third has none."""
    folder = Path(shutil.copytree(llama, tmp_path / "llama"))
    shutil.copy(llama.parent / "tokens.bin", tmp_path)
    job = {**keys(folder), "parallel": "single", "sample": {"tokens": 0}, "checkpoint": {"every": 1}}
    train(tmp_path / "work", **job)
    shutil.rmtree(folder)
    assert train(tmp_path / "work", **{**job, "steps": 2})[0] == 2
    with pytest.raises(UserError, match=r"cannot read .*config\.json"):
        train(tmp_path / "other", **job)


# --- mistakes ---


def config_json(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def bytes_of(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: void((folder / name).write_bytes(change((folder / name).read_bytes())))


def void(_: Any) -> None:
    return None


def arrays(change: Callable[[Json], Any]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        named = arrays_of("llama")
        change(named)
        (folder / "model.safetensors").unlink()
        write_arrays(folder / "model.safetensors", named)

    return rewrite


def header(change: Callable[[Json], Any]) -> Callable[[Path], None]:
    def rewrite(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        entries = json.loads(content[8 : 8 + length])
        change(entries)
        text = json.dumps(entries).encode()
        return len(text).to_bytes(8, "little") + text + content[8 + length :]

    return bytes_of("model.safetensors", rewrite)


def index(change: Callable[[Json], Any]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        given = {"weight_map": dict.fromkeys(arrays_of("llama"), "model-1.safetensors")}
        change(given)
        (folder / "model.safetensors.index.json").write_text(json.dumps(given))

    return rewrite


NORM, HEAD = "model.norm.weight", "lm_head.weight"
FOLDER_MISTAKES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, r"cannot read .*/llama/config\.json: No such file or directory \(seen from"),
    "no config.json": (lambda f: (f / "config.json").unlink(), r"cannot read .*/config\.json: No such file"),
    "broken JSON": (bytes_of("config.json", lambda b: b[:-9]), r"config\.json is not valid JSON: .*download it again"),
    "not a mapping": (bytes_of("config.json", lambda b: b"[]"), r"config\.json is not a mapping"),
    "a folder of the Hub's cache": (
        lambda f: (
            (f / "snapshots/a1").mkdir(parents=True) or (f / "config.json").rename(f / "snapshots/a1/config.json")
        ),
        r"Hub's cache: give the snapshot in it, .*/llama/snapshots/a1$",
    ),
    "a list for a text": (config_json(model_type=["llama"]), r"config\.json is not as `save_pretrained` writes it: "),
    "a list for a number": (
        config_json(vocab_size=[32]),
        r"cannot make the model of .*: vocabulary: Input should be a valid integer",
    ),
    "a text for RoPE": (config_json(rope_parameters="linear"), r"config\.json is not as `save_pretrained` writes it: "),
    "a head that is not tied": (
        config_json(tie_word_embeddings=True),
        r"lm_head\.weight in .*model\.safetensors differs from the embedding; set tie_word_embeddings to false",
    ),
    "a link to nowhere": (
        lambda f: (f / "model.safetensors").unlink() or (f / "model.safetensors").symlink_to("../blobs/a1"),
        r"model\.safetensors is a link to \.\./blobs/a1, which is not there; .*`cp -rL`",
    ),
    "a shard that is a link to nowhere": (
        lambda f: index(lambda i: i["weight_map"].update({NORM: "b"}))(f) or (f / "b").symlink_to("../blobs/a1"),
        r"names b, which is not there; .*`cp -rL`",
    ),
    "bytes of another array": (
        header(lambda h: h[NORM].update(data_offsets=[0, 64])),
        r"its header says that \S+ begins at byte [\d,]+, but the array before it ends at [\d,]+",
    ),
    "bytes of no array": (
        bytes_of("model.safetensors", lambda b: b + b"more"),
        r"model\.safetensors has [\d,]+ bytes, but its header describes [\d,]+; copy or download",
    ),
    "unknown model": (config_json(model_type="mamba"), r"model_type is 'mamba'; model decoder can be llama, mistral"),
    "a text for a size": (
        config_json(hidden_size="big"),
        r"cannot make the model of .*config\.json: width: Input should be a valid integer",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"neither model\.safetensors nor .*save_pretrained"),
    "no shard": (
        index(lambda i: i["weight_map"].update({NORM: "model-2.safetensors"})),
        r"index\.json names model-2\.safetensors, which is not there",
    ),
    "a shard elsewhere": (
        index(lambda i: i["weight_map"].update({NORM: "../a"})),
        r"'\.\./a' is not the name of a file",
    ),
    "a shard with a long name": (
        index(lambda i: i["weight_map"].update({NORM: "a" * 5000})),
        r"'a{200}' is not the name of a file",
    ),
    "in two shards": (
        lambda f: (
            index(lambda i: i["weight_map"].update({HEAD: "model-2.safetensors"}))(f)
            or write_arrays(f / "model-2.safetensors", {name: arrays_of("llama")[name] for name in (NORM, HEAD)})
        ),
        r"-1\.safetensors has the array lm_head\.weight, which .* says is in model-2\.safetensors: are these files of two",
    ),
    "a pattern of zero": (
        lambda f: (f / "config.json").write_text(
            json.dumps({**config_of("gemma3"), "layer_types": None, "sliding_window_pattern": 0})
        ),
        r"sliding_window_pattern is 0, expected at least 1",
    ),
    "a scale of zero": (
        lambda f: (f / "config.json").write_text(json.dumps({**config_of("gemma3"), "query_pre_attn_scalar": 0})),
        r"config\.json is not as `save_pretrained` writes it: 0\.0 cannot be raised",
    ),
    "no weight_map": (index(lambda i: i.clear()), r"weight_map does not map arrays to files"),
    "not in its shard": (
        index(lambda i: i["weight_map"].update(other="model-1.safetensors")),
        r"lacks the array other, which",
    ),
    "a truncated file": (
        bytes_of("model.safetensors", lambda b: b[:-9]),
        r"model\.safetensors is incomplete: \S+ ends at byte [\d,]+, but the file has [\d,]+; copy or download",
    ),
    "an empty file": (bytes_of("model.safetensors", lambda b: b""), r"incomplete: it has 0 bytes"),
    "a huge header": (
        bytes_of("model.safetensors", lambda b: b"\xff" * 8 + b[8:]),
        r"is not a safetensors file, or is incomplete",
    ),
    "a broken header": (bytes_of("model.safetensors", lambda b: b[:8] + b"?" + b[9:]), r"its header cannot be read"),
    "wrong offsets": (
        header(lambda h: h[NORM].update(data_offsets=[0, 4])),
        r"says that model\.norm\.weight, F32\[16\], has the bytes 0 to 4, but it has 64",
    ),
    "negative offsets": (
        header(lambda h: h[NORM].update(data_offsets=[-64, 0])),
        r"entry of model\.norm\.weight: a number",
    ),
    "no offsets": (header(lambda h: h[NORM].pop("data_offsets")), r"the entry of model\.norm\.weight: 'data_offsets'"),
    "integers": (
        arrays(lambda a: a.update({NORM: np.ones(16, np.int8)})),
        r"1 arrays have a dtype that podrun does not read, model\.norm\.weight has I8; weights are F32, .*quantised",
    ),
    "wrong shapes": (
        arrays(lambda a: a.update({NORM: np.ones(8, np.float32), HEAD: a[HEAD].T})),
        r"(?s)do not have the shapes that its config\.json says:\n  model\.norm\.weight  \[8\], expected \[16\]\n"
        r"  lm_head\.weight     \[16, 32\], expected \[32, 16\]$",
    ),
    "a missing array": (
        arrays(lambda a: a.pop(NORM)),
        r"does not fit its config\.json: 1 arrays are missing: model\.norm",
    ),
    "a further array": (arrays(lambda a: a.update(bias=a[NORM])), r"1 arrays have no place: bias$"),
}


@pytest.mark.parametrize("mistake", FOLDER_MISTAKES)
def test_a_mistake_in_the_folder(llama: Path, tmp_path: Path, mistake: str) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "llama"))
    change, message = FOLDER_MISTAKES[mistake]
    change(folder)
    form = shapes(llama)
    with pytest.raises(UserError, match=message):
        loaded(job(folder), form)


def test_a_model_in_a_bucket() -> None:
    """Its URL is checked without a request."""
    with pytest.raises(ValidationError, match=r"the folder gs://B/x: 'B' is not a valid bucket name"):
        Config.model_validate({**keys(Path("x")), "model": {"name": "decoder", "init_from": "gs://B/x"}})
    with pytest.raises(ValidationError, match=r"no storage is called gcs; .* did you mean gs://models/x\?"):
        Config.model_validate({**keys(Path("x")), "model": {"name": "decoder", "init_from": "gcs://models/x"}})


def test_the_name_of_a_model_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"model of the Hub, give a folder with it: hf download Qwen/Qwen3 --local-dir Qwen3"
    ):
        with_architecture(Config.model_validate(keys(Path("Qwen/Qwen3"))))


def test_a_head_that_is_a_copy(tmp_path: Path) -> None:
    """Files of a model with a tied head may have the head as well; it is the embedding."""
    config, arrays = config_of("gemma2"), arrays_of("gemma2")
    assert HEAD not in arrays and config["tie_word_embeddings"] is not False
    plain = write_folder(tmp_path / "plain", config, arrays)
    both = write_folder(tmp_path / "both", config, {**arrays, HEAD: arrays["model.embed_tokens.weight"]})
    assert_identical(load_here(both)[1], load_here(plain)[1])


def shapes(folder: Path) -> Any:
    """Return the form of the parameters on one device."""
    section: Any = job(folder).model
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    params = params_from(family_of(config_of("llama")), section, arrays_of("llama"))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, np.float32, sharding=here), params)


KEY_MISTAKES: dict[str, tuple[Json, str]] = {
    "others": (
        {"layers": 3, "norm": "layer"},
        r"model\.layers is 3, not 2 as in .*config\.json; remove the key\nmodel\.norm is layer, not rms",
    ),
    "of one kind": ({"rope": {"name": "default", "theta": 500}}, r"model\.rope is .*, not .*llama3.*; remove the key"),
    "impossible": ({"kv_heads": 3}, r"the keys do not fit .*config\.json: heads 4 is not divisible by kv_heads 3"),
    "a longer context": ({"context": 65}, r"model\.context is 65, but .*config\.json has 64; give at most that"),
    "another vocabulary": ({"vocabulary": 64}, r"model\.vocabulary is 64, not 32 as in"),
}


@pytest.mark.parametrize("mistake", KEY_MISTAKES)
def test_keys_that_disagree(llama: Path, mistake: str) -> None:
    given, message = KEY_MISTAKES[mistake]
    with pytest.raises(UserError, match=message):
        job(llama, given)


def test_keys_that_agree(llama: Path) -> None:
    """Also in another form; those of training are free."""
    section: Any = job(llama, {"layers": 2, "mlp_width": 24, "layer_types": ["full"], "dropout": 0.1}).model
    assert (section.layers, section.dropout, section.context, section.vocabulary) == (2, 0.1, 11, 32)
    assert section.is_complete


@pytest.mark.parametrize(("of_data", "accepted"), [(31, True), (33, False), (30, False)])
def test_the_vocabulary_of_the_data(llama: Path, of_data: int, accepted: bool) -> None:
    """It may be smaller by as much as padding is; the model keeps all of its own."""
    config = job(llama)
    data = load_dataset(config)
    padded = dataclasses.replace(data, vocabulary=of_data)
    if accepted:
        task = make_task(config, padded)
        assert jax.eval_shape(task.init, jax.random.key(0))["embed"]["embedding"].shape == (32, 16)
    else:
        with pytest.raises(UserError, match=rf"has 32 token ids, but the data has {of_data}; take the model's own: "):
            make_task(config, padded)


def test_a_tokenizer_that_does_not_belong_to_the_model(llama: Path) -> None:
    """The remedy is not what the job already has."""
    config = job(llama)
    data = {"name": "text", "path": "x.txt", "tokenizer": {"name": "bpe", "file": str(llama / "tokenizer.json")}}
    config = Config.model_validate({**config.model_dump(exclude_unset=True), "data": data})
    with pytest.raises(UserError, match=r"tokenizer\.json does not belong to these weights: take the tokenizer"):
        model_vocabulary(with_architecture(config), 10)


def test_a_file_of_all_beside_an_index(llama: Path, tmp_path: Path) -> None:
    """Shards of an earlier save are not read, as transformers does not read them."""
    folder = Path(shutil.copytree(llama, tmp_path / "llama"))
    (folder / "model.safetensors.index.json").write_text("{}")
    assert_identical(load_here(folder)[1], load_here(llama)[1])


def test_members_of_an_ensemble(llama: Path) -> None:
    with pytest.raises(ValueError, match="all members would begin with the same weights"):
        job(llama, parallel="ensemble")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_config_and_back(name: str) -> None:
    """The family of a section is found from its values, and its config.json gives the section again."""
    family = family_of(config_of(name))
    section = family.section(config_of(name))
    assert family_that_is(section) is family
