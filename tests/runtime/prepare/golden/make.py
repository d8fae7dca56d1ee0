"""Make the golden conversations of this folder: token ids and masks of answers by transformers.

    pip install transformers jinja2 tokenizers
    python tests/runtime/prepare/golden/make.py

The templates have the form that the models' documentation gives, shortened, with answers enclosed in the tag `generation`,
which transformers needs for masks. tokenizer.json is a small tokenizer with the special tokens of all of them. chat.json has
for each template the conversations' `input_ids` and `assistant_masks`, or null where the template raises an error. Made with
transformers 5.24, jinja2 3.1.6 and tokenizers 0.23.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parent
SPECIAL = [
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
]
NOT_SPECIAL = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
TOKENS = {
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "qwen25": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "gemma": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "qwen3": {"eos_token": "<|im_end|>"},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city <now> & later.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def said(*turns: str) -> list[dict[str, Any]]:
    """Return messages of a user and an assistant in turns."""
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(turns)]


SYSTEM = {"role": "system", "content": "  Answer briefly.\n"}
CALL = {
    "role": "assistant",
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Łódź"}}}],
}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one": {"messages": said("Who are you?", "A model of language.")},
    "several": {
        "messages": said("Hello", "Hello! How can I help?", "Count to 3", "1\n2\n3", "Thanks", "You are welcome.")
    },
    "system": {"messages": [SYSTEM, *said("Hello", "Hi.", "Bye", "Bye.")]},
    "spaces": {"messages": said("  a \n", "\n\n  indented\n\n", "b", "   ")},
    "characters": {"messages": said("日本語で <b>&amp;</b>", "🙂🙃 naïve e\u0301 👩‍👩‍👧", "…", "«Ω»")},
    "control": {"messages": said("Say <|im_end|>\n<|im_start|>assistant\n<end_of_turn>", "No <|eot_id|> here.")},
    "tool": {
        "messages": [
            {"role": "user", "content": "Weather in Łódź?"},
            CALL,
            {"role": "tool", "content": '{"sky": "grey"}'},
            {"role": "assistant", "content": "Grey."},
        ],
        "tools": [WEATHER],
    },
    "tools": {
        "messages": [
            SYSTEM,
            {"role": "user", "content": "Weather?"},
            {**CALL, "content": "I ask twice.", "tool_calls": CALL["tool_calls"] * 2},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2"},
            {"role": "assistant", "content": "Grey."},
            *said("And now?", "Blue."),
        ],
        "tools": [WEATHER],
    },
    "thoughts": {
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "2", "reasoning_content": "one and one"},
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "<think>\ntwo and two\n</think>\n\n4"},
        ]
    },
    "in a row": {"messages": [*said("a", "b"), {"role": "assistant", "content": "c"}, *said("d", "e")]},
    "question last": {"messages": said("a", "b", "c")},
}


def make_tokenizer() -> None:
    """Write tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    texts = [path.read_text() for path in sorted(FOLDER.glob("*.jinja"))]
    tokenizer.train_from_iterator([*texts, json.dumps(CONVERSATIONS, ensure_ascii=False), "\n\n \n\n\n " * 40], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in NOT_SPECIAL])
    tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)


def encoded(name: str) -> dict[str, Any]:
    """Return what transformers makes of the conversations with a template."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **TOKENS[name]}
        Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
        Path(folder, "tokenizer.json").write_text((FOLDER / "tokenizer.json").read_text())
        # A fixed date: the golden file must not change from day to day.
        source = (FOLDER / f"{name}.jinja").read_text().replace('strftime_now("%d %b %Y")', '"26 Nov 2026"')
        Path(folder, "chat_template.jinja").write_text(source)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    for key, row in CONVERSATIONS.items():
        try:
            out = tokenizer.apply_chat_template(
                row["messages"], tools=row.get("tools"), return_assistant_tokens_mask=True, return_dict=True
            )
        except Exception as error:
            print(name, key, error)
            results[key] = None
            continue
        results[key] = {"input_ids": out["input_ids"], "assistant_masks": out["assistant_masks"]}
    return results


if __name__ == "__main__":
    make_tokenizer()
    rows = {"tokens": TOKENS, "conversations": CONVERSATIONS, **{name: encoded(name) for name in TOKENS}}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in rows.items())
    (FOLDER / "chat.json").write_text(f"{{\n{lines}\n}}\n")
