"""LoRA on a pod: killed, resumed bit for bit, pulled, evaluated, and exported with its base and without."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from podrun.runtime.checkpoint.saved_model import SavedModel, find_checkpoint
from podrun.runtime.models.families import family_of
from podrun.runtime.models.pretrained import load_here
from podrun.runtime.models.weight_files import stored_arrays

from ..conftest import Sandbox
from ..runtime.models.published import arrays_of, config_of, params_from, write_folder, write_tokenizer
from .conftest import Run, kill_everything

LETTERS = "abcdefghijklmnopqrstuvwxyz .,\n?"
STEPS = 30
JOB = f"""
task: language_model
model: {{name: decoder, init_from: llama, context: 16, lora: {{rank: 4, alpha: 8, dropout: 0.1}}}}
data: {{name: text, path: notes.txt, tokenizer: {{name: bpe, file: llama/tokenizer.json}}}}
steps: {STEPS}
batch_size: 8
ema: 0.9
optimizer: {{name: adamw, learning_rate: 1e-2}}
parallel: {{name: jit, mesh: {{fsdp: 2}}}}
eval: {{every: 0, batches: 2}}
checkpoint: {{every: 10}}
sample: {{tokens: 0}}
log: {{every: 1, tensorboard: false}}
"""


def flat(tree: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {".".join(path): tree}
    return {name: leaf for key, inner in tree.items() for name, leaf in flat(inner, (*path, key)).items()}


@pytest.mark.long
def test_killed_and_exported(start: Callable[..., Run], sandbox: Sandbox) -> None:
    folder = write_folder(sandbox.path / "llama", config_of("llama"), arrays_of("llama"))
    write_tokenizer(folder / "tokenizer.json", LETTERS)
    (sandbox.path / "notes.txt").write_text("a green bottle, and if it falls there are none.\n" * 200)
    (sandbox.path / "lora.yaml").write_text(JOB)
    launch = ("--slice", "cpu-2x2", "--simulate", "lora.yaml", "-w")
    whole = sandbox.podrun(*launch, "runs/whole")
    assert whole.returncode == 0, whole.stderr
    run = start(*launch, "runs/lora")
    run.wait_for(lambda event: event["event"] == "checkpoint")
    run.wait_for_step(12)
    kill_everything(sandbox)
    (folder / "model.safetensors").rename(sandbox.path / "elsewhere")  # a resumed run does not read it
    resumed = start(*launch, "runs/lora")
    assert resumed.end() == 0, resumed.stderr
    assert 10 <= resumed.of("resume")[0]["step"] < STEPS
    losses = sandbox.losses("runs/lora")
    assert losses == sandbox.losses("runs/whole") and len(losses) == STEPS
    assert losses[STEPS] < losses[1] - 0.2

    older, newer = (sandbox.path / "runs/lora/checkpoints" / str(step) / "frozen" for step in (20, 30))
    links = [path for path in newer.rglob("*") if path.is_file() and path.name != "commit_success.txt"]
    assert links and all(path.samefile(older / path.relative_to(newer)) for path in links)

    saved = SavedModel(find_checkpoint(sandbox.path / "runs/lora", None))
    family, section = family_of(config_of("llama")), saved.job.model
    base = flat(params_from(family, section, arrays_of("llama")))  # type: ignore[arg-type]
    trained = {".".join(place[1:]): saved.read(place) for place in saved.arrays if place[0] == "params"}
    averaged = {".".join(place[1:]) for place in saved.arrays if place[0] == "ema"}
    assert averaged == trained.keys() - base and averaged and all("_lora." in name for name in averaged)
    for name, value in base.items():
        assert trained[name].tobytes() == value.tobytes(), name
    assert sum(path.stat().st_size for path in links) > sum(value.nbytes for value in base.values())

    pulled = sandbox.podrun("pull", "--to", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    evaluated = sandbox.podrun("evaluate", "pulled", "--json")
    metrics = json.loads(evaluated.stdout)["metrics"]
    expected = sandbox.metrics("runs/lora", "eval")[STEPS]
    assert metrics == {name: pytest.approx(expected[name], rel=1e-6) for name in metrics}
    written = sandbox.podrun("generate", "pulled", "--prompt", "a green", "--temperature", "0", "-n", "8")
    assert written.returncode == 0, written.stderr

    for form in ("hf", "peft"):
        made = sandbox.podrun("export", "pulled", "--format", form, "-o", f"made-{form}")
        assert made.returncode == 0, made.stderr
    ema = flat(saved.trees(np.asarray)[0])
    merged = flat(load_here(sandbox.path / "made-hf")[1])
    a, b = (ema[f"layers.block_0.mlp.down_lora.{letter}"] for letter in "ab")
    kernel = base["layers.block_0.mlp.down.kernel"]
    np.testing.assert_allclose(merged["layers.block_0.mlp.down.kernel"], kernel + 2 * a @ b, rtol=1e-5, atol=1e-6)
    adapter = json.loads((sandbox.path / "made-peft/adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"], adapter["base_model_name_or_path"]) == (4, 8, "llama")
    assert not list(sandbox.path.glob("made-peft/model*")) and stored_arrays(sandbox.path / "made-hf")


@pytest.mark.long
def test_mistakes(sandbox: Sandbox) -> None:
    """Mistakes end with exit code 2 and no traceback, whether the launcher sees them or only config.json shows them."""
    write_folder(sandbox.path / "gpt2", config_of("gpt2"), arrays_of("gpt2"))
    (sandbox.path / "adapter").mkdir()
    (sandbox.path / "adapter/adapter_config.json").write_text("{}")
    (sandbox.path / "run/checkpoints").mkdir(parents=True)
    (sandbox.path / "any.yaml").write_text("task: language_model\nsteps: 1\nbatch_size: 4\n")
    run = ("--slice", "cpu-1x1", "--simulate", "any.yaml")
    rows = {
        "{name: decoder, init_from: gpt2, lora: {targets: [c_attn]}}": "'c_attn' is no matrix of a layer",
        "{name: decoder, init_from: gpt2, lora: {targets: [gate_proj]}}": "the MLP of this model has no gate",
        "{name: decoder, init_from: adapter}": "has an adapter of PEFT, which podrun does not train further",
        "{name: decoder, init_from: run}": "is the workdir of a run; write its model with `podrun export",
        "{name: gpt2, lora: {}}": "model.lora",
    }
    for model, message in rows.items():
        done = sandbox.podrun(*run, f"model={model}")
        assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (2, False), done.stderr
        assert message in done.stderr + done.stdout, done.stderr + done.stdout
