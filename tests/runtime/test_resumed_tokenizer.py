"""A checkpoint brings its tokenizer along: a job without one samples with it, and one that names another is told so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import Workdir, WorkerEnv
from podrun.runtime.data.tokenizers import BytePairs
from podrun.runtime.train import Trainer
from podrun.runtime.worker.progress import Reporter

TEXT = "the quick brown fox jumps over the lazy dog\n" * 40
MODEL = {"name": "gpt2", "layers": 1, "heads": 1, "width": 8, "context": 8}


def train(folder: Path, steps: int, data: dict[str, Any]) -> list[dict[str, Any]]:
    """Train to a step in one process; return the events."""
    env = WorkerEnv("run", 0, "host-0", 0, 1, (0, 1, 2, 3), "cpu-1x4", folder)
    workdir = Workdir(folder)
    workdir.token("run", 0).touch()
    config = Config.model_validate(
        {
            "task": "language_model",
            "steps": steps,
            "batch_size": 2,
            "data": data,
            "model": MODEL,
            "parallel": "single",
            "schedule": {"name": "constant"},
            "sample": {"tokens": 4, "prompt": "the"},
            "eval": {"every": 0, "batches": 1},
            "log": {"tensorboard": False},
        }
    )
    events = folder / f"events-{steps}"
    trainer = Trainer(config, env, workdir, Reporter(events))
    trainer.start()
    trainer.run()
    trainer.finish()
    trainer.close()
    return [json.loads(line) for line in events.read_text().splitlines()]


@pytest.mark.long
def test_sampling_goes_on_without_the_tokenizers_file(tmp_path: Path) -> None:
    """Also from checkpoints that were saved without it; a file that has changed meanwhile is told in the run's output."""
    pytest.importorskip("tokenizers", reason="the bpe extra is not installed")
    tokenizer = BytePairs.train(TEXT, 270)
    tokenizer.encode(TEXT).astype(np.uint16).tofile(tmp_path / "tokens.bin")
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    data = {"name": "tokens", "path": str(tmp_path / "tokens.bin"), "vocabulary": 300}
    named = {**data, "tokenizer_file": str(tmp_path / "tokenizer.json")}
    texts = []
    for steps, section in ((1, named), (2, data), (3, data)):
        events = train(tmp_path, steps, section)
        texts += [event["text"] for event in events if event["event"] == "text"]
        (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    assert len(texts) == 3
    assert all(text.startswith("the") for text in texts)

    (tmp_path / "tokenizer.json").write_text(BytePairs.train("mississippi " * 50, 262).to_json())
    notes = [event["message"] for event in train(tmp_path, 4, named) if event["event"] == "note"]
    assert any("the tokenizer: " in note and "tokens differ" in note for note in notes), notes
