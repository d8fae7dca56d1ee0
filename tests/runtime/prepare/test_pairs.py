"""Pairs of answers: the forms that data sets have, what is compared of them, and what `podrun prepare --pairs` refuses."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.data.prepared_files import MANIFEST, PreparedFolder
from podrun.runtime.prepare.chat import ChatError, ChatTemplate, Conversation, Conversations
from podrun.runtime.prepare.show import show

from .chats import CHAT, TOKENIZER, learned, lines, model_folder, source
from .conftest import files_of, run_prepare

USER, ASSISTANT = "user", "assistant"


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


PROMPT = [message("system", "Be brief."), message(USER, "What is the sky?")]
YES, NO = message(ASSISTANT, "Blue."), message(ASSISTANT, "A big, big thing.")
FORMS: dict[str, dict[str, Any]] = {
    "explicit": {"prompt": PROMPT, "chosen": [YES], "rejected": [NO]},
    "implicit": {"chosen": [*PROMPT, YES], "rejected": [*PROMPT, NO]},
    "repeated": {"prompt": PROMPT, "chosen": [*PROMPT, YES], "rejected": [*PROMPT, NO]},
    "answers as text": {"prompt": PROMPT, "chosen": YES["content"], "rejected": NO["content"]},
    "prompt as text": {"prompt": PROMPT[1]["content"], "chosen": [*PROMPT, YES], "rejected": [*PROMPT, NO]},
}
"""One pair, in the forms that the data sets of TRL and others have."""


def conversations(name: str, *, generation: bool) -> Conversations:
    template = ChatTemplate(name, {"default": source(name, generation=generation)}, CHAT["tokens"][name])
    return Conversations(template, TOKENIZER, datetime(2026, 11, 26))


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("name", ["llama3", "qwen25"])
@pytest.mark.parametrize("form", FORMS)
def test_the_forms_of_a_pair(form: str, name: str, generation: bool) -> None:
    """Ids are those of the whole conversations; only the last answers are compared."""
    encoder = conversations(name, generation=generation)
    pair = encoder.encode_pair(FORMS[form])
    for one, answer in zip(pair, (YES, NO), strict=True):
        whole = encoder.encode({"messages": [*PROMPT, answer]})
        assert one.ids.tolist() == whole.ids.tolist() and one.answers.tolist() == whole.answers.tolist()
        assert learned(one)[0].startswith(answer["content"]) and len(learned(one)) == 1


@pytest.mark.parametrize("generation", [True, False])
def test_answers_that_both_have(generation: bool) -> None:
    """Answers before the conversations part are not compared; all answers after it are, and the user's words are not."""
    encoder = conversations("qwen25", generation=generation)
    begin = [*PROMPT, YES, message(USER, "And the sea?")]
    chosen = [message(ASSISTANT, "Blue too."), message(USER, "Why?"), message(ASSISTANT, "Water.")]
    pair = encoder.encode_pair({"prompt": begin, "chosen": chosen, "rejected": [NO]})

    def texts(one: Conversation) -> list[str]:
        return [text.removesuffix("<|im_end|>").strip() for text in learned(one)]

    assert [texts(one) for one in pair] == [["Blue too.", "Water."], ["A big, big thing."]]


def test_both_as_text() -> None:
    """A prompt is what the user says."""
    row = {"prompt": "What is the sky?", "chosen": "Blue.", "rejected": "Red."}
    encoder = conversations("llama3", generation=False)
    expected = encoder.encode({"messages": [PROMPT[1], YES]})
    assert encoder.encode_pair(row)[0].ids.tolist() == expected.ids.tolist()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": PROMPT, "chosen": [YES], "rejected": [YES]}, "chosen and rejected are the same"),
        ({"prompt": PROMPT, "chosen": [YES]}, "rejected is empty"),
        ({"prompt": PROMPT, "chosen": [], "rejected": [NO]}, "chosen is empty"),
        (
            {"chosen": "Blue.", "rejected": "Red."},
            "have no message in common at their beginning, and there is no prompt",
        ),
        ({"prompt": 3, "chosen": [YES], "rejected": [NO]}, "prompt is neither text nor a list of messages"),
        (
            {"prompt": PROMPT, "chosen": [YES], "rejected": [{"role": "assistant"}]},
            "rejected: message 1 has no content",
        ),
        ({"prompt": PROMPT, "chosen": [YES], "rejected": [PROMPT[1]]}, "rejected: it has no answer"),
        ({"prompt": PROMPT, "chosen": [YES], "rejected": [message("ghost", "a")]}, "rejected: .*unknown role 'ghost'"),
        ({"prompt": PROMPT, "chosen": [YES, PROMPT[1], NO], "rejected": [YES]}, "rejected: it has no answer"),
        ({"prompt": PROMPT, "chosen": [YES], "rejected": ["A"]}, "rejected: message 1 is not an object"),
        ({"prompt": PROMPT, "chosen": "\ud800", "rejected": "a"}, "chosen: it has half of a surrogate pair"),
        ({"prompt": PROMPT, "chosen": [YES], "rejected": [NO], "tools": "{"}, "tools is not JSON"),
    ],
)
def test_bad_pairs(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(ChatError, match=reason):
        conversations("llama3", generation=False).encode_pair(row)


def test_a_folder(tmp_path: Path) -> None:
    """Pairs of jsonl and Parquet; bad ones are counted, and the folder is the same for any number of workers."""
    model = model_folder(tmp_path / "model", "qwen25")
    rows = [
        {"prompt": f"What is {n} + {n}?", "chosen": f"{2 * n}.", "rejected": f"{2 * n + 1}, or not.", "score": n}
        for n in range(50)
    ]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    bad = {**rows[0], "rejected": rows[0]["chosen"]}
    (corpus / "a.jsonl").write_text(lines([*rows[:30], bad]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[30:]), corpus / "b.parquet")
    report = run_prepare(tmp_path / "one", corpus, tokenizer=str(model), pairs=True)
    assert (report.documents, report.bad, report.pairs) == (100, 1, True)
    assert report.bad_shown[0].endswith("a.jsonl, line 31: chosen and rejected are the same")
    run_prepare(tmp_path / "two", corpus, tokenizer=str(model), pairs=True, workers=2)
    differ = {name for name, data in files_of(tmp_path / "one").items() if files_of(tmp_path / "two").get(name) != data}
    assert differ <= {"plan.json"}  # it has the time of the command, in seconds
    prepared = PreparedFolder(tmp_path / "one")
    encoder = Conversations(
        ChatTemplate("", {"default": source("qwen25", generation=False)}, CHAT["tokens"]["qwen25"]),
        TOKENIZER,
        datetime.now(),
    )
    for number, row in enumerate(rows):
        for part, expected in enumerate(encoder.encode_pair(row)):
            document = prepared.document(2 * number + part)
            assert document.ids.tolist() == expected.ids.tolist()
            assert document.answers is not None and document.answers.tolist() == expected.answers.tolist()
            assert document.number == (number + 1 if number < 30 else number - 30)
    facts = show(tmp_path / "one", True, 0)
    assert (
        facts.damage == {} and facts.pairs and [sample.role for sample in facts.samples] == ["chosen", "rejected"] * 3
    )
    assert all("⟦" in sample.text for sample in facts.samples)


def test_mistakes(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model", "qwen25")
    (tmp_path / "a.jsonl").write_text(lines([{"prompt": "a", "chosen": "b", "answer": "c"}]))
    (tmp_path / "b.jsonl").write_text(lines([FORMS["explicit"]]))
    cases = [
        ("a", {"pairs": True}, r"a\.jsonl has no column rejected, which --pairs reads; it has prompt, chosen, answer"),
        ("b", {"pairs": True, "chat": True}, "--chat and --pairs are both given; pairs are conversations as well"),
        (
            "b",
            {"pairs": True, "column": "a"},
            "--pairs reads the columns prompt, chosen, rejected and tools, and the chat",
        ),
        (
            "b",
            {"pairs": True, "tokenizer": "byte"},
            "--pairs needs the chat template of a model, and tokenizer byte has",
        ),
        ("b", {"chat": True}, r"b\.jsonl has no column messages or conversations, which --chat reads; it has prompt"),
        ("b", {}, r"b\.jsonl has no column text; it has prompt, chosen, rejected: give --pairs for pairs of answers"),
    ]
    for number, (name, keys, message) in enumerate(cases):
        with pytest.raises(UserError, match=message):
            run_prepare(tmp_path / f"out{number}", tmp_path / f"{name}.jsonl", **{"tokenizer": str(model), **keys})
    run_prepare(tmp_path / "made", tmp_path / "b.jsonl", tokenizer=str(model), pairs=True)
    (tmp_path / "c.jsonl").write_text(lines([{"messages": [*PROMPT, YES]}]))
    with pytest.raises(UserError, match="--pairs was given, and --chat is given now"):
        run_prepare(tmp_path / "made", tmp_path / "c.jsonl", tokenizer=str(model), chat=True)


@pytest.mark.parametrize("change", [{"has_answers": False}, {"pairs": 1}, {"documents": 1}])
def test_a_damaged_manifest(tmp_path: Path, change: dict[str, Any]) -> None:
    model = model_folder(tmp_path / "model", "qwen25")
    (tmp_path / "b.jsonl").write_text(lines([FORMS["explicit"]]))
    run_prepare(tmp_path / "made", tmp_path / "b.jsonl", tokenizer=str(model), pairs=True)
    path = tmp_path / "made" / MANIFEST
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, **change}))
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        PreparedFolder(tmp_path / "made")
