"""A run of two processes that begins with a published model in a bucket: what each reads, and what its user is told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from podrun.runtime.storage.bucket_client import Bucket

from ..buckets import ADDRESS, BUCKET, bucket_server
from ..conftest import make_sandbox
from ..fault_proxy import Faults, fault_proxy
from ..runtime.models.published import config_of, write_folder, write_tokenizer
from .bucket_chaos import Bucketed, environment
from .conftest import processes_of

POD = ("--slice", "cpu-2x2", "--simulate")
JOB = """
task: language_model
model: {name: decoder, init_from: llama, context: 32}
data: {name: text, path: text.txt, tokenizer: {name: bpe, file: llama/tokenizer.json}}
steps: 2
batch_size: 8
optimizer: {name: adamw, learning_rate: 1e-3}
parallel: {name: jit, mesh: {fsdp: 4}}
eval: {every: 0, batches: 1}
checkpoint: {every: 0}
sample: {tokens: 0}
log: {every: 1, tensorboard: false}
"""


def wide_llama(folder: Path, letters: str) -> tuple[Path, int]:
    """A Llama whose matrices are large enough to be divided, in three files; and the bytes of its arrays."""
    size, hidden, layers, heads = 256, 512, 2, 4
    config = {**config_of("llama"), "hidden_size": size, "intermediate_size": hidden, "num_hidden_layers": layers}
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": size // heads}
    config |= {"vocab_size": len(letters), "tie_word_embeddings": True}
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(letters), size),
        "model.norm.weight": (size,),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (size, size) for name in "qkvo"}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (hidden, size) for name in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (size, hidden)}
        shapes |= {f"{at}.{name}_layernorm.weight": (size,) for name in ("input", "post_attention")}
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}
    write_folder(folder, config, arrays, files=3)
    write_tokenizer(folder / "tokenizer.json", letters)
    return folder, sum(array.nbytes for array in arrays.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    sandbox = make_sandbox(tmp_path_factory.mktemp("llama"))
    return wide_llama(sandbox.path / "llama", "".join(sorted({*(sandbox.path / "text.txt").read_text()})))


@contextmanager
def bucketed(path: Path, folder: Path, scheme: str) -> Iterator[tuple[Bucketed, Faults, str]]:
    """A sandbox whose requests go through a proxy, with the job and its folder, also in a bucket."""
    make_sandbox(path)
    (path / "llama").symlink_to(folder)
    (path / "train.yaml").write_text(JOB)
    faults = Faults()
    with bucket_server(scheme, path / "server.log") as env, fault_proxy(env[ADDRESS[scheme]], faults) as proxy:
        sandbox = Bucketed(path, {**env, ADDRESS[scheme]: proxy})
        url = f"{scheme}://{BUCKET}/llama"
        with environment(sandbox.server):
            for file in folder.iterdir():
                Bucket(url).put_file(file.name, file)
        faults.sent.clear()
        yield sandbox, faults, url


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["jit", "explicit"])
def test_each_part_is_read_once(tmp_path: Path, folder: tuple[Path, int], strategy: str) -> None:
    """The losses are those of the folder; both processes together read each divided array once, and config.json once."""
    path, total = folder
    chosen = f"parallel.name={strategy}"
    with bucketed(tmp_path, path, "gs") as (sandbox, faults, url):
        done = sandbox.podrun(*POD, "-w", "bucket", "train.yaml", chosen, f"model.init_from={url}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"the weights come from {url}" in done.stdout
        weights = sum(count for name, count in faults.sent.items() if name.endswith(".safetensors"))
        headers = 2 * sum(8 + header(file) for file in path.glob("*.safetensors"))
        assert total < weights <= 1.05 * total + headers, (weights, total, headers)
        assert faults.sent["config.json"] == (path / "config.json").stat().st_size
        local = sandbox.podrun(*POD, "-w", "folder", "train.yaml", chosen)
        assert local.returncode == 0, local.stdout + local.stderr
        assert sandbox.losses("bucket") == sandbox.losses("folder")
        again = sandbox.podrun(*POD, "-w", "bucket", "train.yaml", chosen, f"model.init_from={url}", "steps=3")
        assert again.returncode == 0 and "resumed from the checkpoint of step 2" in again.stdout, again.stderr
        read = sum(count for name, count in faults.sent.items() if name.endswith(".safetensors"))
        assert read == weights  # a resumed run does not read them


@pytest.mark.long
def test_a_run_whose_folder_is_gone(tmp_path: Path, folder: tuple[Path, int]) -> None:
    """It goes on from its checkpoint in a bucket, also on a machine that has no copy of that."""
    with bucketed(tmp_path, folder[0], "gs") as (sandbox, _, _):
        words = (*POD, "-w", f"gs://{BUCKET}/runs/llama", "train.yaml")
        begun = sandbox.podrun(*words)
        assert begun.returncode == 0, begun.stdout + begun.stderr
        tokenizer = (folder[0] / "tokenizer.json").read_bytes()
        (sandbox.path / "llama").unlink()
        (sandbox.path / "tokenizer.json").write_bytes(tokenizer)
        shutil.rmtree(sandbox.path / "cache")
        done = sandbox.podrun(*words, "data.tokenizer={name: bpe, file: tokenizer.json}", "steps=3")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "resumed from the checkpoint of step 2" in done.stdout


def header(file: Path) -> int:
    with file.open("rb") as opened:
        return int.from_bytes(opened.read(8), "little")


CASES: dict[str, tuple[str, int, str]] = {
    "wrong bucket": (
        "gs://no-such-bucket/llama",
        2,
        "model.init_from: there is no gs://no-such-bucket/llama/config.json",
    ),
    "missing shard": ("", 2, "model.safetensors.index.json names model-00002-of-00003.safetensors, which is not there"),
    "the network drops": ("", 69, "model.init_from: gs://podrun-test/llama: cannot read model-0000"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_what_a_user_is_told(tmp_path: Path, folder: tuple[Path, int], name: str) -> None:
    """The last line is the reason, and nothing is left on the hosts."""
    given, code, message = CASES[name]
    with bucketed(tmp_path, folder[0], "gs") as (sandbox, faults, url):
        if name == "missing shard":
            with environment(sandbox.server):
                Bucket(url).delete("model-00002-of-00003.safetensors")
        if name == "the network drops":
            faults.broken_after = 1 << 20  # bytes, of 3 MB
        done = sandbox.podrun(*POD, "-w", "w", "train.yaml", f"model.init_from={given or url}")
        assert done.returncode == code, done.stdout + done.stderr
        last = done.stderr.splitlines()[-1]
        assert message in last and f"[exit code {code}]" in last, done.stderr
        assert "Traceback" not in done.stderr and not processes_of(sandbox)
