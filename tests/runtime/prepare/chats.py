"""The golden conversations and templates, and short conversations to try."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from podrun.runtime.data.tokenizers import BytePairs

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
