"""docs/models.md: a folder of transformers is trained on a pod, and exported to such a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from podrun.runtime.models.weight_files import stored_arrays

from ..conftest import Sandbox
from ..runtime.models.published import arrays_of, config_of, write_folder
from ..tutorial import commands, run

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
LETTERS = "abcdefghijklmnopqrstuvwxyz .,\n"
TINY = {"context: 1024": "context: 16", "steps: 200": "steps: 3", "warmup_steps: 20": "warmup_steps: 1", "1e-5": "1e-2"}


@pytest.mark.long
def test_the_page(sandbox: Sandbox) -> None:
    """With a tiny Qwen 3, whose vocabulary of 32 is a padded one of 31: all weights change, and nothing else."""
    folder = write_folder(sandbox.path / "qwen3", config_of("qwen3"), arrays_of("qwen3"), files=2)
    vocabulary = {letter: i for i, letter in enumerate([*LETTERS, "?"])}
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (sandbox.path / "notes.txt").write_text("a green bottle, and if it falls there are none.\n" * 200)
    job = re.findall(r"```yaml\n# finetune\.yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    for of_the_page, tiny in TINY.items():
        assert of_the_page in job
        job = job.replace(of_the_page, tiny)
    (sandbox.path / "finetune.yaml").write_text(f"{job}sample: {{tokens: 8}}\nlog: {{every: 1, tensorboard: false}}\n")
    train, export, *_ = commands(PAGE)  # what writes text is tested in tests/runtime/generate
    assert "the weights come from qwen3" in run(sandbox, train)
    losses = sandbox.losses("runs/finetune")
    assert losses[3] < losses[1]
    assert "qwen3-notes" in run(sandbox, export)
    made = sandbox.path / "qwen3-notes"
    config = json.loads((made / "config.json").read_text())
    of_the_files = {"dtype": "float32", "transformers_version": None}
    assert {**config, "transformers_version": None} == {**config_of("qwen3"), **of_the_files}
    assert json.loads((made / "tokenizer.json").read_text())["model"]["vocab"] == vocabulary
    trained = stored_arrays(made)
    for name, before in arrays_of("qwen3").items():
        after = trained[name].part((slice(None),) * before.ndim)
        assert after.shape == before.shape and not np.array_equal(after, before), name
