"""A tiny Llama with a chat template of its letters, and pairs of answers that `podrun prepare --pairs` writes with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..models.published import arrays_of, config_of, write_folder, write_tokenizer
from ..prepare.conftest import run_prepare

LETTERS = "abcdefghijklmnopqrstuvwxyz .,\n?"
TEMPLATE = """\
{%- for message in messages -%}
{{ "?" if message.role == "user" else "." }}{{ message.content }}{{ "\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}.{%- endif -%}
"""


def llama_folder(folder: Path) -> Path:
    """Write the golden Llama, with a tokenizer of `LETTERS`: a question begins with ?, an answer with a full stop."""
    write_folder(folder, config_of("llama"), arrays_of("llama"))
    write_tokenizer(folder / "tokenizer.json", LETTERS)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def pair(number: int) -> dict[str, Any]:
    """Return a line of pairs.jsonl; its conversations have some 10 to 16 tokens."""
    letter, other = LETTERS[number % 26], LETTERS[(7 * number + 3) % 26]
    prompt = [{"role": "user", "content": letter * (2 + number % 3) + ","}]
    chosen = [{"role": "assistant", "content": f"{letter} {letter}"}]
    rejected = [{"role": "assistant", "content": f"no {other}" + "," * (number % 4)}]
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def pairs_folder(folder: Path, model: Path, rows: list[dict[str, Any]]) -> Path:
    """Prepare pairs."""
    source = folder.parent / f"{folder.name}.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run_prepare(folder, source, tokenizer=str(model), pairs=True)
    return folder
