"""The golden conversations and templates, and short conversations to try."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from podrun.runtime.data.tokenizers import BytePairs
from podrun.runtime.prepare.chat import Conversation

GOLDEN = Path(__file__).parent / "golden"
CHAT: dict[str, Any] = json.loads((GOLDEN / "chat.json").read_text())
TOKENIZER = BytePairs.load(GOLDEN / "tokenizer.json")


def source(name: str, *, generation: bool) -> str:
    """Return a template, with the tag `generation` or without."""
    text = (GOLDEN / f"{name}.jinja").read_text()
    return text if generation else re.sub(r"\{%-? (end)?generation %\}", "", text)


def said(*turns: str) -> dict[str, Any]:
    """Return a line with what a user and an assistant say in turns."""
    return {"messages": [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)]}


def learned(conversation: Conversation) -> list[str]:
    """Return the text of each run of tokens that are learned."""
    runs: list[list[int]] = []
    before = 0
    for token, answer in zip(conversation.ids.tolist(), conversation.answers.tolist(), strict=True):
        if answer and not before:
            runs.append([])
        if answer:
            runs[-1].append(token)
        before = answer
    return [TOKENIZER._tokenizer.decode(run, skip_special_tokens=False) for run in runs]


def model_folder(folder: Path, name: str) -> Path:
    """Write the folder of a model with a chat template."""
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((GOLDEN / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(CHAT["tokens"][name]))
    (folder / "chat_template.jinja").write_text(source(name, generation=False))
    return folder


def lines(rows: list[Any]) -> str:
    """Return rows as jsonl."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)
