"""docs/data.md, followed from raw files to a run on a mixture: its commands and its sections as they stand there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from ..conftest import Sandbox
from .data_page import sections

TEXT = "".join(f"{n} green bottles hanging on the wall, and if one falls there are {n - 1}.\n" for n in range(300))


def write_bpe(file: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator([TEXT], trainer)
    words.save(str(file))


@pytest.mark.long
def test_the_page_as_a_reader_follows_it(sandbox: Sandbox) -> None:
    blocks, here = sections(), sandbox.path
    write_bpe(here / "tokenizer.json")
    lines = TEXT.splitlines()
    for name, part in (("web", lines), ("code", lines[::2]), ("held", lines[::9])):
        with (here / f"{name}.jsonl").open("w") as file:
            file.writelines(json.dumps({"text": line}) + "\n" for line in part)
        made = sandbox.podrun("prepare", f"{name}.jsonl", "-o", f"{name}-tokens/", "--tokenizer", "tokenizer.json")
        assert made.returncode == 0, made.stderr
    for folder in ("books", "letters"):
        (here / folder).mkdir()
        (here / folder / "one.txt").write_text(TEXT)
    (here / "corpus-tokens").symlink_to("web-tokens")

    alone = yaml.safe_load(blocks["Packing"].splitlines()[0])
    mixture, further = (yaml.safe_load(blocks[name]) for name in ("Mixtures", "Several validation sets"))
    base = {
        "model": {"name": "decoder", "layers": 1, "width": 16, "heads": 2, "context": 32},
        "steps": 4,
        "batch_size": 8,
        "sample": {"tokens": 0},
        "log": {"every": 1, "tensorboard": False},
    }
    (here / "packed.yaml").write_text(yaml.safe_dump({**base, **alone}))
    (here / "mixed.yaml").write_text(yaml.safe_dump({**base, **mixture, **further}))
    for job in ("packed", "mixed"):
        run = sandbox.podrun("--slice", "cpu-1x2", "--simulate", f"{job}.yaml", "-w", f"runs/{job}")
        assert run.returncode == 0, run.stderr
        assert "rows of whole documents" in run.stdout + run.stderr
    written = sandbox.podrun("generate", "runs/packed", "--prompt", "1 green", "--tokens", "8")
    assert written.returncode == 0, written.stderr
    exported = sandbox.podrun("export", "runs/packed", "--format", "hf", "-o", "exported")
    assert exported.returncode == 0, exported.stderr
    assert json.loads((here / "exported/config.json").read_text())["eos_token_id"] == 0  # <|endoftext|>
    evaluation = sandbox.metrics("runs/mixed", "eval")[4]
    assert {"loss", "web/loss", "code/loss", "books/loss", "held/loss", "letters/accuracy"} <= evaluation.keys()
    shown = sandbox.podrun("batches", "runs/mixed", "--step", "2")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"  \d: web\.jsonl:\d+.*\(data\.path web-tokens/?, tokens [\d,]+ to [\d,]+\)", shown.stdout), (
        shown.stdout
    )
    left_out = sandbox.podrun("--slice", "cpu-1x2", "--simulate", "mixed.yaml", "data.skip=[[2, 2]]", "-w", "runs/skip")
    assert left_out.returncode == 0, left_out.stderr
    assert sandbox.losses("runs/skip")[1] == sandbox.losses("runs/mixed")[1]
    assert sandbox.losses("runs/skip")[2] != sandbox.losses("runs/mixed")[2]
