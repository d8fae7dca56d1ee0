"""Folders of conversations: what `podrun prepare --chat` writes, shows and refuses, and what a job learns of it."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.data.prepared_files import PreparedFolder
from podrun.runtime.data.tokenizers import BytePairs
from podrun.runtime.prepare.chat import Conversations, load_template
from podrun.runtime.prepare.show import show

from ...conftest import here
from .chats import CHAT, GOLDEN, TOKENIZER, lines, model_folder, said, source
from .conftest import files_of, run_prepare


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Folder of a model with the template of Qwen 2.5."""
    return model_folder(tmp_path / "model", "qwen25")


def many(count: int) -> list[dict[str, Any]]:
    return [said(f"What is {n} + {n}?", f"{2 * n}.", "Thanks" * (n % 9), f"Bye {n}") for n in range(count)]


def test_a_folder_has_the_conversations_of_every_format(tmp_path: Path, model: Path) -> None:
    rows, corpus = many(60), tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "README.md").write_text("not a conversation")
    (corpus / "a.jsonl").write_text(lines(rows[:20]))
    (corpus / "b.jsonl.gz").write_bytes(gzip.compress(lines(rows[20:30]).encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[30:40]), corpus / "c.parquet")
    tool = CHAT["conversations"]["tool"]
    nulls = {"messages": tool["messages"], "tools": json.dumps(tool["tools"]), "score": 1.5}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([nulls]), corpus / "d.parquet")
    shared = [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]
    (corpus / "e.jsonl").write_text(lines(shared))
    report = run_prepare(tmp_path / "tokens", corpus, tokenizer=str(model), chat=True)
    encoder = Conversations(load_template(model), TOKENIZER, datetime.now())
    prepared = PreparedFolder(tmp_path / "tokens")
    expected = [encoder.encode(row) for row in [*rows[:40], tool, *shared]]
    assert (report.documents, report.bad, report.left_out) == (len(expected), 0, 0)
    assert report.answers == sum(int(one.answers.sum()) for one in expected)
    assert (prepared.manifest.has_answers, prepared.manifest.eos) == (True, None)
    for number, one in enumerate(expected):
        document = prepared.document(number)
        assert document.answers is not None
        assert document.ids.tolist() == one.ids.tolist()
        assert document.answers.tolist() == one.answers.tolist()
    assert prepared.damage() == {}
    assert run_prepare(tmp_path / "tokens", corpus, tokenizer=str(model), chat=True).was_complete


@pytest.mark.long
def test_more_workers_write_the_same_bytes(tmp_path: Path, model: Path) -> None:
    text = lines(many(12_000))
    assert len(text) > 2 << 20  # several parts
    (tmp_path / "a.jsonl").write_text(text)
    one, two = (
        run_prepare(tmp_path / str(n), tmp_path / "a.jsonl", tokenizer=str(model), chat=True, workers=n) for n in (1, 2)
    )
    assert one.shards == two.shards > 2
    before, after = (files_of(tmp_path / str(n)) for n in (1, 2))
    for files in (before, after):
        del files["plan.json"]  # it has the time
    assert before == after


def test_a_template_writes_the_date_of_the_first_command(tmp_path: Path) -> None:
    """So that a folder that is completed on another day has one date."""
    folder, output = model_folder(tmp_path / "model", "llama3"), tmp_path / "tokens"
    (tmp_path / "a.jsonl").write_text(lines(many(3)))
    run_prepare(output, tmp_path / "a.jsonl", tokenizer=str(folder), chat=True)
    plan = json.loads((output / "plan.json").read_text())
    (output / "plan.json").write_text(json.dumps({**plan, "now": "1999-12-31T23:00:00"}))
    (output / "manifest.json").unlink()
    run_prepare(output, tmp_path / "a.jsonl", tokenizer=str(folder), chat=True)
    assert "Today Date: 31 Dec 1999" in PreparedFolder(output).text(PreparedFolder(output).document(2).ids)


def test_bad_lines_are_counted_with_their_reasons(tmp_path: Path, model: Path) -> None:
    source = tmp_path / "a.jsonl"
    rows = [
        said("a", "b"),
        said("a"),
        {"text": "a"},
        {"messages": [{"role": "poet", "content": "a"}]},
        [],
        said("c", "d"),
    ]
    source.write_text(lines(rows) + "\n" + lines([said("e", "f\ud800")]))
    report = run_prepare(tmp_path / "tokens", source, tokenizer=str(model), chat=True)
    assert (report.documents, report.empty, report.bad) == (2, 1, 5)
    assert report.bad_shown == [
        f"{source}, line 2: it has no answer: no message is of the role assistant",
        f"{source}, line 3: it has neither messages nor conversations",
        f"{source}, line 4: message 1 has the unknown role 'poet'",
        f"{source}, line 5: it is a list, not an object",
        f"{source}, line 8: it has half of a surrogate pair, which is not a character",
    ]
    assert [PreparedFolder(tmp_path / "tokens").document(n).number for n in (0, 1)] == [1, 6]
    with pytest.raises(UserError, match=r"--strict: .*a.jsonl, line 2: it has no answer"):
        run_prepare(tmp_path / "strict", source, tokenizer=str(model), chat=True, strict=True)


def test_answers_that_are_left_out_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines([said("a", "b", "c", "d", "e", "f"), said("g", "h")]))
    folder = model_folder(tmp_path / "model", "qwen3")
    assert run_prepare(tmp_path / "tokens", tmp_path / "a.jsonl", tokenizer=str(folder), chat=True).left_out == 2


def test_samples_show_what_is_learned(tmp_path: Path, model: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines([said("Hello", "Hi.", "Bye", "Bye!")]))
    report = run_prepare(tmp_path / "tokens", tmp_path / "a.jsonl", tokenizer=str(model), chat=True)
    shown = show(tmp_path / "tokens", False, 0)
    assert shown.answers == report.answers
    assert shown.samples[0].text.endswith(
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n⟦Hi.<|im_end|>⟧\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n⟦Bye!<|im_end|>⟧\n"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokenizer": "byte"},
            "--chat needs the chat template of a model, and tokenizer byte has none; give --tokenizer",
        ),
        ({"column": "text"}, "leave --column, --template and --eos out"),
        ({"template": "{text}"}, "leave --column, --template and --eos out"),
        ({"eos": "<|im_end|>"}, "leave --column, --template and --eos out"),
        ({"tokenizer": "bare"}, "bare has no chat template"),
        ({"tokenizer": "wrong"}, "line 1 of the chat template is not valid"),
        ({"chat": False}, "a.jsonl has no column text; it has messages: give --chat for conversations"),
        ({"sources": ["a.txt"]}, "a.txt is text; --chat reads conversations from jsonl, Parquet and Arrow files"),
        (
            {"sources": ["text.jsonl"]},
            "text.jsonl has no column messages or conversations, which --chat reads; it has text",
        ),
    ],
)
def test_bad_options_are_named(
    tmp_path: Path, model: Path, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, template in (("bare", None), ("wrong", "{% if %}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_bytes((GOLDEN / "tokenizer.json").read_bytes())
        if template is not None:
            (tmp_path / name / "chat_template.jinja").write_text(template)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "text.jsonl").write_text(lines([{"text": "a"}]))
    (tmp_path / "a.jsonl").write_text(lines(many(1)))
    with pytest.raises(UserError, match=message):
        run_prepare(tmp_path / "tokens", "a.jsonl", **{"tokenizer": str(model), "chat": True, **changes})
    assert not (tmp_path / "tokens").exists()


def test_another_template_is_refused_for_the_same_folder(tmp_path: Path, model: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines([{**said("a", "b"), "text": "c"}]))
    run_prepare(tmp_path / "tokens", tmp_path / "a.jsonl", tokenizer=str(model), chat=True)
    with pytest.raises(UserError, match="--chat was given and is not given"):
        run_prepare(tmp_path / "tokens", tmp_path / "a.jsonl", tokenizer=str(model))
    (model / "chat_template.jinja").write_text(source("qwen3", generation=False))
    with pytest.raises(UserError, match="the chat template has another content than before"):
        run_prepare(tmp_path / "tokens", tmp_path / "a.jsonl", tokenizer=str(model), chat=True)


def test_the_command_writes_and_shows_conversations(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.jsonl").write_text(lines([said("Hello", "Hi.", "Bye", "Bye!"), said("nobody answers")]))

    def podrun(*arguments: str) -> str:
        done = here(capfd)("prepare", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    written = podrun("chat.jsonl", "-o", "tokens", "--tokenizer", "model", "--chat")
    assert "tokens: 1 document, " in written
    assert "are of answers and are learned\n" in written
    assert "chat.jsonl, line 2: it has no answer: no message is of the role assistant" in written
    shown = podrun("--show", "tokens", "--verify")
    assert "conversations end as the chat template says" in shown
    assert "are learned; ⟦ ⟧ enclose them below\n  every file is as it was written" in shown
    assert "<|im_start|>assistant\n⟦Hi.<|im_end|>⟧\n<|im_start|>user" in shown


def test_a_job_learns_exactly_the_answers(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From jsonl to batches: the tokens with a weight of 1 are those of answers, each once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = many(40)
    (tmp_path / "a.jsonl").write_text(lines(rows))
    run_prepare(tmp_path / "tokens", tmp_path / "a.jsonl", tokenizer=str(model), chat=True)
    data = {"name": "prepared", "path": str(tmp_path / "tokens"), "packing": "fit", "validation": 0.2}
    section = {"name": "decoder", "context": 256}
    config = Config.model_validate({"steps": 1, "batch_size": 2, "model": section, "data": data})
    dataset = load_dataset(config)
    assert isinstance(dataset.tokenizer, BytePairs)
    answers = []
    for examples in (dataset.train, dataset.validation):
        numbers = np.arange(examples.size)
        batch = examples.gather(numbers, np.zeros_like(numbers))
        for tokens, segments, weights in zip(batch["tokens"], batch["segments"], batch["weights"], strict=True):
            for segment in range(1, segments.max() + 1):
                learned = tokens[1:][(segments == segment) & (weights == 1)]
                answers.append(dataset.tokenizer.decode_all(learned))
    expected = [
        "".join(f"{one['content']}<|im_end|>" for one in row["messages"] if one["role"] == "assistant") for row in rows
    ]
    assert sorted(answers) == sorted(expected)
