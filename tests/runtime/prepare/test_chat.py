"""Conversations as tokens: ids and answers are those of transformers.

The golden files are made by golden/make.py, which needs transformers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.prepare import chat_template
from podrun.runtime.prepare.chat import ChatError, ChatTemplate, Conversations, load_template

from .chats import CHAT, TOKENIZER, learned, said, source

NAMES = tuple(CHAT["tokens"])
NOW = datetime(2026, 11, 26)
CASES = [
    (name, key, generation)
    for name in NAMES
    for key in CHAT["conversations"]
    for generation in (True, False)
    if name != "qwen3" or generation or key in ("one", "control")
]
"""Without the tag `generation` the template of Qwen 3 has one case of its own, because it changes earlier answers."""


def conversations(name: str, *, generation: bool) -> Conversations:
    template = ChatTemplate(name, {"default": source(name, generation=generation)}, CHAT["tokens"][name])
    return Conversations(template, TOKENIZER, NOW)


def of(text: str, **tokens: str) -> Conversations:
    return Conversations(ChatTemplate("chat_template.jinja", {"default": text}, tokens), TOKENIZER, NOW)


@pytest.mark.parametrize(("name", "key", "generation"), CASES)
def test_ids_and_answers_are_those_of_transformers(name: str, key: str, generation: bool) -> None:
    golden, encoder = CHAT[name][key], conversations(name, generation=generation)
    if golden is None:
        with pytest.raises(
            ChatError, match=r"the chat template rejects it: (This model only|System role|Conversation roles)"
        ):
            encoder.encode(CHAT["conversations"][key])
        return
    found = encoder.encode(CHAT["conversations"][key])
    assert (found.ids.dtype, found.answers.dtype, found.left_out) == (np.uint32, np.uint8, 0)
    assert found.ids.tolist() == golden["input_ids"]
    assert 1 in golden["assistant_masks"]
    assert found.answers.tolist() == golden["assistant_masks"]


def written(name: str, messages: list[dict[str, str]]) -> list[tuple[str, bool]]:
    """Return the parts of a conversation, written without templates, and whether an assistant says each."""
    parts: list[tuple[str, bool]] = []
    if name == "llama3":
        first = messages[0]["role"] == "system"
        system = messages[0]["content"].strip() if first else ""
        head = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        parts = [(f"{head}Today Date: 26 Nov 2026\n\n{system}<|eot_id|>", False)]
        for message in messages[first:]:
            parts.append((f"<|start_header_id|>{message['role']}<|end_header_id|>\n\n", False))
            parts.append((f"{message['content'].strip()}<|eot_id|>", message["role"] == "assistant"))
    elif name == "qwen25":
        if messages[0]["role"] != "system":
            default = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
            messages = [{"role": "system", "content": default}, *messages]
        for message in messages:
            parts.append((f"<|im_start|>{message['role']}\n", False))
            parts.append((f"{message['content']}<|im_end|>", message["role"] == "assistant"))
            parts.append(("\n", False))
    else:
        parts = [("<bos>", False)]
        for message in messages:
            parts.append((f"<start_of_turn>{'model' if message['role'] == 'assistant' else 'user'}\n", False))
            parts.append((f"{message['content'].strip()}<end_of_turn>", message["role"] == "assistant"))
            parts.append(("\n", False))
    return parts


@pytest.mark.parametrize("name", ["llama3", "qwen25", "gemma"])
def test_random_conversations_equal_those_that_slow_code_writes(name: str) -> None:
    random = np.random.default_rng(7)
    pieces = [
        "a",
        " word",
        "\n",
        "\n\n",
        "  ",
        "é",
        "日本",
        "🙂",
        "<b>",
        "</think>",
        "'s",
        "12",
        "{{ x }}",
        "<|endoftext|>",
    ]
    with_generation, without = (conversations(name, generation=generation) for generation in (True, False))
    for _ in range(60):
        texts = ["".join(random.choice(pieces, random.integers(0, 8))) for _ in range(2 * random.integers(1, 4))]
        messages = said(*texts)["messages"]
        if name != "gemma" and random.random() < 0.5:
            messages = [{"role": "system", "content": "".join(random.choice(pieces, 3))}, *messages]
        parts = written(name, messages)
        text, flags = "".join(part for part, _ in parts), [flag for part, flag in parts for _ in part]
        expected = TOKENIZER._tokenizer.encode(text, add_special_tokens=False)
        mask = [int(any(flags[start:end])) for start, end in expected.offsets]
        for encoder in (with_generation, without):
            found = encoder.encode({"messages": messages})
            assert (found.ids.tolist(), found.answers.tolist()) == (expected.ids, mask), messages


def test_answers_that_later_messages_change_are_left_out_and_counted() -> None:
    """Qwen 3 leaves out the thoughts of earlier answers, and writes empty ones for the last."""
    encoder = conversations("qwen3", generation=False)
    for key in ("several", "system", "thoughts"):
        golden, found = CHAT["qwen3"][key], encoder.encode(CHAT["conversations"][key])
        assert found.ids.tolist() == golden["input_ids"]
        last = max(
            place
            for place, bit in enumerate(golden["assistant_masks"])
            if not bit and sum(golden["assistant_masks"][place:])
        )
        assert found.answers.tolist() == [0] * (last + 1) + golden["assistant_masks"][last + 1 :]
        count = sum(message["role"] == "assistant" for message in CHAT["conversations"][key]["messages"])
        assert found.left_out == count - 1
    assert learned(encoder.encode(CHAT["conversations"]["thoughts"])) == [
        "<think>\ntwo and two\n</think>\n\n4<|im_end|>"
    ]
    with pytest.raises(ChatError, match=r"no answer that can be learned: .*otherwise"):
        encoder.encode(CHAT["conversations"]["question last"])


def test_a_call_of_a_tool_is_an_answer_and_its_result_is_not() -> None:
    found = conversations("qwen25", generation=False).encode(CHAT["conversations"]["tool"])
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź"}}\n</tool_call><|im_end|>'
    assert learned(found) == [call, "Grey.<|im_end|>"]


def test_other_forms_of_a_line_mean_the_same() -> None:
    encoder = conversations("qwen25", generation=False)
    plain = encoder.encode({"messages": [{"role": "system", "content": "S"}, *said("a b", "c")["messages"]]})
    turns = [{"from": "system", "value": "S"}, {"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"}]
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    null = {"role": "assistant", "content": "c", "tool_calls": None, "name": None}
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": parts}, null]
    for row in (
        {"conversations": turns},
        {"messages": None, "conversations": turns},
        {"messages": messages, "tools": None},
    ):
        found = encoder.encode(row)
        assert (found.ids.tolist(), found.answers.tolist()) == (plain.ids.tolist(), plain.answers.tolist())
    tool = CHAT["conversations"]["tool"]
    as_text = encoder.encode({**tool, "tools": json.dumps(tool["tools"])})
    assert as_text.ids.tolist() == CHAT["qwen25"]["tool"]["input_ids"]


IMAGE = [{"type": "text", "text": "What is it?"}, {"type": "image", "url": "a.png"}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "it has neither messages nor conversations"),
        ({"messages": None}, "it has neither messages nor conversations"),
        ({"messages": []}, "messages is empty"),
        ({"conversations": "hello"}, "conversations is not a list"),
        ({"messages": ["hello"]}, "message 1 is not an object"),
        ({"messages": [{"content": "a"}]}, "message 1 has no role"),
        (
            {"messages": [*said("a")["messages"], {"role": "poet", "content": "b"}]},
            "message 2 has the unknown role 'poet'",
        ),
        (
            {"conversations": [{"from": "function_call", "value": "b"}]},
            "message 1 has the unknown role 'function_call'",
        ),
        ({"messages": [{"role": ["user"], "content": "b"}]}, "message 1 has the unknown role ['user']"),
        ({"messages": [{"role": "user", "content": None}]}, "message 1 has no content"),
        ({"messages": [*said("a")["messages"], {"role": "assistant"}]}, "message 2 has no content"),
        ({"messages": [{"role": "user", "content": 7}]}, "the content of message 1 is not text"),
        (
            {"messages": [{"role": "user", "content": IMAGE}]},
            "message 1 has content of type 'image'; only text can be learned",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "message 1 has a part without text"),
        (said("a"), "it has no answer: no message is of the role assistant"),
        ({**said("a", "b"), "tools": "weather"}, "tools is not JSON"),
        ({**said("a", "b"), "tools": ["weather"]}, "tools is not a list of objects"),
        (said("a", "\ud800"), "it has half of a surrogate pair, which is not a character"),
        (said("a", "b\ufdd1"), "it has U+FDD0 or U+FDD1, which are no characters"),
        (
            {"messages": [{"role": "system", "content": "a"}, *said("a", "b")["messages"]]},
            "rejects it: System role not supported",
        ),
        ({"messages": said("a", "b")["messages"][::-1]}, "rejects it: Conversation roles must alternate"),
    ],
)
def test_a_bad_line_is_told_with_the_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(ChatError, match=re.escape(reason)):
        conversations("gemma", generation=False).encode(row)


PLAIN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
INSTRUCTIONS = "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}"
NO_END = f"{INSTRUCTIONS}{{% if add_generation_prompt %}}### assistant:\n{{% endif %}}"
OPENS = PLAIN + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
MACRO = (
    "{% macro answer(text) %}{% generation %}{{ text }}<|im_end|>{% endgeneration %}{% endmacro %}"
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}{% continue %}{% endif %}"
    "<|im_start|>{{ answer(m.content) }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "answers"),
    [
        (PLAIN + PROMPT, ["one<|im_end|>", "two<|im_end|>"]),
        (PLAIN, ["one<|im_end|>", "two<|im_end|>"]),  # nothing says where an answer begins
        (NO_END, ["one\n\n", "two\n\n"]),
        (INSTRUCTIONS, ["one\n\n", "two\n\n"]),
        (
            PLAIN + PROMPT + "{% if not add_generation_prompt %}<|endoftext|>{% endif %}",
            ["two<|im_end|>\n<|endoftext|>"],
        ),
        (MACRO, ["one<|im_end|>", "two<|im_end|>"]),
    ],
)
def test_only_what_an_assistant_says_is_learned(template: str, answers: list[str]) -> None:
    found = of(template).encode(said("a", "one", "b", "two"))
    assert (learned(found), found.left_out) == (answers, 2 - len(answers))


def test_an_answer_that_nothing_asks_for_is_left_out() -> None:
    template = "{{ messages[0].role }}{{ raise_exception('nobody asks') if not messages }}" + PLAIN + PROMPT
    found = of(template).encode({"messages": [{"role": "assistant", "content": "zero"}, *said("a", "one")["messages"]]})
    assert (learned(found), found.left_out) == (["one<|im_end|>"], 1)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (OPENS, "each otherwise than"),
        ("{% generation %}{% endgeneration %}" + PLAIN, "the template writes none of them"),
        ("{{ messages[7].content }}", "rejects it: "),
        ("{{ messages[0].content + 1 }}", "rejects it: "),
        ("{{ ''.__class__.__mro__ }}", "rejects it: .*unsafe"),
        ("{{ messages.append(1) }}", "rejects it: .*(safe|append)"),
        ("{% set n = namespace(a=1) %}{% set n.__class__ = 1 %}", "rejects it: a namespace cannot have __class__"),
        ("{{ namespace(_a=1) }}", "rejects it: a namespace cannot have _a"),
        ("{{ dict.mro() }}", "rejects it: "),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "rejects it: Range too big"),
    ],
)
def test_a_template_that_fails_or_leaves_its_sandbox_is_told(template: str, reason: str) -> None:
    with pytest.raises(ChatError, match=reason):
        of(template).encode(said("a", "b"))


def test_a_template_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_LIMIT", 0.2)
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    encoder = of("{% if messages[0].content == 'a' %}" + loops + "{% endif %}" + PLAIN + PROMPT)
    with pytest.raises(ChatError, match=r"the chat template rejects it: it did not end within 0\.2 s$"):
        encoder.encode(said("a", "b"))
    assert len(encoder.encode(said("c", "b")).ids)  # the limit is that of one conversation


def test_templates_have_what_transformers_gives_them() -> None:
    text = (
        "{{ strftime_now('%Y-%m-%d') }}{{ bos_token }}{{ [1, '<&é'] | tojson }}{{ dict(a=1).a }}{{ dict.fromkeys('b').b }}\n"
        "  {% set n = namespace(self=2) %}\n{{ n.self }}{{ documents is none }}{{ sep_token is defined }}"
        "{% generation %}{{ messages[0].thinking }}{{ messages[0].reasoning_content }}{% endgeneration %}"
    )
    found = of(text, bos_token="<bos>").encode({"messages": [{"role": "assistant", "content": "", "reasoning": "why"}]})
    whole = TOKENIZER._tokenizer.decode(found.ids.tolist(), skip_special_tokens=False)
    assert whole == '2026-11-26<bos>[1, "<&é"]1None\n2TrueFalsewhywhy'


# --- files of a model -----------------------------------------------------------------------------------------------


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_a_template_is_read_from_the_files_of_a_model(tmp_path: Path) -> None:
    config = {
        "chat_template": "A",
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": None,
        "model_max_length": 9,
    }
    write(
        tmp_path, {"tokenizer_config.json": config, "special_tokens_map.json": {"bos_token": "<x>", "pad_token": "<p>"}}
    )
    assert load_template(tmp_path) == ChatTemplate(
        str(tmp_path / "tokenizer_config.json"), {"default": "A"}, {"bos_token": "<s>", "pad_token": "<p>"}
    )
    several = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    extra = {"image_token": "<i>"}
    write(tmp_path, {"tokenizer_config.json": {"chat_template": several, "extra_special_tokens": extra}})
    assert load_template(tmp_path).templates == {"default": "D", "tool_use": "T"}
    assert load_template(tmp_path).tokens == {"pad_token": "<p>", "bos_token": "<x>", "image_token": "<i>"}
    write(tmp_path, {"chat_template.jinja": "J"})
    assert load_template(tmp_path).templates == {"default": "J"}
    assert load_template(tmp_path).origin == str(tmp_path / "chat_template.jinja")
    write(tmp_path, {"additional_chat_templates/rag.jinja": "R"})
    assert load_template(tmp_path).templates == {"default": "J", "rag": "R"}


def test_a_template_for_tools_is_used_for_a_line_with_tools() -> None:
    template = ChatTemplate(
        "", {"default": "{% generation %}D{% endgeneration %}", "tool_use": "{% generation %}T{% endgeneration %}"}, {}
    )
    encoder = Conversations(template, TOKENIZER, NOW)
    assert learned(encoder.encode(said("a", "b"))) == ["D"]
    assert learned(encoder.encode({**said("a", "b"), "tools": [{"name": "f"}]})) == ["T"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no chat template: no chat_template.jinja, and no chat_template in tokenizer_config.json; give"),
        ({"tokenizer_config.json": {"bos_token": "<s>"}}, "has no chat template"),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json is not a JSON object; download the file again"),
        ({"tokenizer_config.json": {"chat_template": 7}}, "chat_template is not text"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "rag"}]}}, "chat_template is not text"),
        (
            {"tokenizer_config.json": {"chat_template": {"rag": "R"}}},
            "has the chat templates rag, and none that is called default",
        ),
    ],
)
def test_a_model_without_a_usable_template_is_told(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        load_template(write(tmp_path, files))


def test_a_template_that_is_not_valid_is_told_with_its_line() -> None:
    with pytest.raises(
        UserError, match=r"chat_template\.jinja: line 2 of the chat template is not valid: .*; correct it"
    ):
        of("{{ bos_token }}\n{% if %}")


def test_without_jinja2_the_message_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from datetime import datetime\n"
        "from podrun.runtime.contract import UserError\n"
        "from podrun.runtime.prepare.chat import ChatTemplate, Conversations\n"
        "try:\n    Conversations(ChatTemplate('', {}, {}), None, datetime(2026, 1, 1))\n"
        "except UserError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "chat templates need jinja2, which podrun's extra `chat` has: pip install 'jinja2>=3.1.6'\n"
