"""docs/data.md, followed from raw files to a run on a mixture: its commands and its sections as they stand there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import yaml

from podrun.runtime.storage.bucket_client import Bucket

from ..buckets import bucket_server
from ..conftest import Sandbox
from ..runtime.data.pairs_folder import llama_folder, pair
from .bucket_chaos import environment
from .data_page import commands, sections

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


@pytest.fixture
def bucket(sandbox: Sandbox) -> Iterator[Bucket]:
    """The bucket of the page, of which the sandbox knows."""
    with bucket_server("gs", sandbox.path / "server.log", bucket="my-bucket") as server:
        sandbox.env.update(server)
        with environment(server):
            yield Bucket("gs://my-bucket")


@pytest.mark.long
def test_every_command_of_the_page(sandbox: Sandbox, bucket: Bucket) -> None:
    """Each as it stands there, with files of these names; `...` is a small pod, and steps are few."""
    here, done = sandbox.path, set()
    lay_out(here, bucket)

    def run(begin: str, *more: str, steps: str = "") -> str:
        """Run the commands of the page that begin so, a pattern. Return what they print."""
        output = ""
        for words in commands():
            if re.match(begin, " ".join(words)) and " ".join(words) not in done:
                done.add(" ".join(words))
                given = " ".join(
                    ["--slice cpu-1x2 --simulate" if word == "..." else shlex.quote(word) for word in words]
                )
                given = given.replace("1203", steps) if steps else given
                result = sandbox.podrun(*shlex.split(given), *more)
                assert result.returncode == 0, (words, result.stdout, result.stderr)
                output += result.stdout
        assert output, begin
        return output

    assert "21 documents" in run("prepare corpus/ -o web")
    assert "20 documents" in run("prepare chat.jsonl -o chat-tokens --tokenizer models/llama")
    blocks = sections()
    short = blocks["In short"][blocks["In short"].index("task:") :].replace("2048", "32").replace("5000", "6")
    (here / "finetune.yaml").write_text(short.replace("batch_size: 64", "batch_size: 8"))
    assert "podrun: done" in run(r"\.\.\. finetune", "sample.tokens=0", "log.tensorboard=false", "-w", "runs/short")
    shutil.rmtree(here / "chat-tokens")  # another model's is next
    assert "41 documents" in run("prepare corpus/")
    assert "10 documents" in run("prepare qa.jsonl")
    assert "41 documents" in run("prepare --show corpus-tokens")
    assert "20 documents" in run("prepare chat.jsonl")
    assert "60 pairs" in run("prepare preferences.jsonl")
    if ["prepare", "--show", "chat-tokens"] in commands():
        run("prepare --show chat-tokens")

    preferences = blocks["Preferences"][blocks["Preferences"].index("task: dpo") :]
    few = {"steps": 6, "batch_size": 8, "sample": {"tokens": 0}, "log": {"every": 1, "tensorboard": False}}
    job = yaml.safe_load(preferences[: preferences.index("data: 4,810")].replace("1024", "20"))
    (here / "train.yaml").write_text(yaml.safe_dump({**job, **few}))
    assert "pairs" in run(r"\.\.\. train\.yaml$", "-w", "runs/dpo")
    model = {"name": "decoder", "layers": 1, "width": 16, "heads": 2, "context": 32}
    for name, data in (
        ("packed", yaml.safe_load(blocks["Packing"].splitlines()[0])["data"]),
        ("chat", {"name": "prepared", "path": "chat-tokens", "packing": "fit"}),
        ("brought", yaml.safe_load(blocks["Data on the hosts"].splitlines()[0])["data"]),
        ("bucket", yaml.safe_load(blocks["Data on the hosts"].splitlines()[1])["data"]),
    ):
        (here / "train.yaml").write_text(yaml.safe_dump({**few, "model": model, "data": data}))
        trained = sandbox.podrun("--slice", "cpu-1x2", "--simulate", "train.yaml", "-w", f"runs/{name}")
        assert trained.returncode == 0, (name, trained.stdout, trained.stderr)
    shutil.copytree(here / "runs/packed", here / "runs/train")
    assert "step 3" in run("batches runs/train", steps="3")
    assert run(r"\.\.\. train\.yaml data\.skip", "-w", "runs/skip", steps="3")
    assert {" ".join(words) for words in commands()} == done


def lay_out(here: Path, bucket: Bucket) -> None:
    """Write the files that the page names."""
    lines = TEXT.splitlines()
    for folder in ("corpus", "more", "models"):
        (here / folder).mkdir(parents=True)
    write_bpe(here / "tokenizer.json")
    for name in ("llama-3", "qwen"):
        llama_folder(here / "models" / name)
    rows = [json.dumps({"text": line}) + "\n" for line in lines]
    (here / "corpus/a.jsonl").write_text("".join(rows[:20]))
    (here / "corpus/0.txt").write_text(TEXT)
    pyarrow.parquet.write_table(pyarrow.table({"text": lines[20:30]}), here / "more/c.parquet")
    bucket.put("pages/d.jsonl", "".join(rows[30:40]).encode())
    for name in ("train", "val"):
        bucket.put(f"corpus/{name}.bin", np.arange(4000, dtype=np.uint16).tobytes())
    questions = [{"question": line[:20], "answer": line[20:]} for line in lines[:10]]
    (here / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    pairs = [pair(number) for number in range(60)]
    (here / "preferences.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    chats = [{"messages": row["prompt"] + row["chosen"]} for row in pairs[:20]]
    (here / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
