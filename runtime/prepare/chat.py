"""Conversations as token ids by the chat template of a model, with the tokens that are to be learned: those of answers.

A template that encloses answers in `{% generation %}` says which they are. Otherwise an answer is what a conversation up to
it has beyond the prompt that asks for it: the conversation before it with `add_generation_prompt`. It is learned if the whole
conversation begins with both. Some templates write an answer otherwise once more messages follow, such as that of Qwen 3,
which leaves out the thoughts of earlier answers: these are not learned, because nobody asks the model for them in that form.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..contract import UserError
from ..data.tokenizers import BytePairs
from .documents import Row

Array = np.ndarray[Any, Any]
Span = tuple[int, int]
"""First character and the one after the last."""
Message = dict[str, Any]

_FILE, _FURTHER, _CONFIG, _OLDER = (
    "chat_template.jinja",
    "additional_chat_templates",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_SHAREGPT = {"human": "user", "gpt": "assistant"}
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # names of one field; templates use the first or the second
_ASSISTANT = "assistant"
_PROBE = "\ufdd0"  # an answer that begins as no other does


class ChatError(Exception):
    """A conversation cannot be used. The message is the reason."""


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a model."""

    origin: str
    """The file that has it."""
    templates: dict[str, str]
    """`default`, and perhaps `tool_use` for conversations with tools, and others."""
    tokens: dict[str, str]
    """Special tokens by names such as bos_token."""

    @property
    def digest(self) -> str:
        """Return the digest of the content."""
        content = json.dumps([self.templates, self.tokens], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def load_template(folder: Path) -> ChatTemplate:
    """Return the chat template of a model's folder, from the files that transformers reads. Raises UserError."""
    config = _fields(folder / _CONFIG)
    file = folder / _FILE
    further = {path.stem: _text(path) for path in sorted((folder / _FURTHER).glob("*.jinja"))}
    given = config.get("chat_template")
    if file.is_file() or further:
        templates, origin = further | ({"default": _text(file)} if file.is_file() else {}), file
    else:
        origin = folder / _CONFIG
        if isinstance(given, list):
            given = {str(one.get("name")): one.get("template") for one in given if isinstance(one, dict)}
        templates = given if isinstance(given, dict) else {"default": given} if given is not None else {}
    if not templates:
        raise UserError(
            f"{folder} has no chat template: no {_FILE}, and no chat_template in {_CONFIG}; give the folder of a model that "
            "was trained on conversations, or write a template there"
        )
    if not all(isinstance(template, str) for template in templates.values()):
        raise UserError(f"{origin}: chat_template is not text; download the file again")
    if "default" not in templates:
        names = ", ".join(sorted(templates))
        raise UserError(
            f"{folder} has the chat templates {names}, and none that is called default; write that to {_FILE}"
        )
    older = _fields(folder / _OLDER)
    extra = config.get("extra_special_tokens")
    tokens = {name: token for name in _TOKENS if (token := _token(config.get(name, older.get(name)))) is not None}
    tokens |= {
        name: token for name, value in (extra if isinstance(extra, dict) else {}).items() if (token := _token(value))
    }
    return ChatTemplate(os.fspath(origin), templates, tokens)


def _token(value: Any) -> str | None:
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _fields(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        fields = json.loads(_text(path))
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise UserError(f"{path} is not a JSON object; download the file again")
    return fields


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8; download the file again") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a folder that can be read") from None


class Conversation(NamedTuple):
    """A conversation as tokens."""

    ids: Array
    """uint32[n]"""
    answers: Array
    """uint8[n], 1 for each token of an answer, that which ends it included."""
    left_out: int
    """Answers that are not learned, because the template writes them otherwise once more messages follow."""


class Conversations:
    """Encode conversations.

    Args:
        template: the model's chat template.
        tokenizer: the model's tokenizer.
        now: the present time, which a template may write.

    Raises:
        UserError: jinja2 is missing, or the template is not valid.
    """

    def __init__(self, template: ChatTemplate, tokenizer: BytePairs, now: datetime) -> None:
        try:
            from jinja2 import TemplateSyntaxError

            from .chat_template import Compiled
        except ImportError:
            raise UserError(
                "chat templates need jinja2, which podrun's extra `chat` has: pip install 'jinja2>=3.1.6'"
            ) from None
        try:
            self._templates = {
                name: Compiled(source, template.tokens, now) for name, source in template.templates.items()
            }
        except TemplateSyntaxError as error:
            raise UserError(
                f"{template.origin}: line {error.lineno} of the chat template is not valid: {error.message}; correct it"
            ) from None
        self._tokenizer = tokenizer
        self._special = tuple(tokenizer.special_tokens)

    def encode(self, row: Row) -> Conversation:
        """Return a conversation as tokens.

        Args:
            row: {"messages": [{"role": ..., "content": ...}, ...]}, or {"conversations": [{"from": ..., "value": ...}, ...]};
                also {"tools": [...]}, descriptions of functions.

        Raises:
            ChatError: the conversation cannot be used.
        """
        return self._encoded(_messages(row), _tools(row), 0)

    def encode_pair(self, row: Row) -> tuple[Conversation, Conversation]:
        """Return the conversation with the chosen answer and the one with the rejected answer, as tokens.

        `answers` are 1 only after the messages with which both conversations begin.

        Args:
            row: {"prompt": ..., "chosen": ..., "rejected": ...}: lists of messages, or text. A text is one message: of the
                user in a prompt, otherwise of the assistant. Without a prompt, it is the beginning that `chosen` and
                `rejected` have in common. Also {"tools": [...]}.

        Raises:
            ChatError: the pair cannot be used.
        """
        chosen, rejected = _pair(row)
        common = next(
            (number for number, (one, other) in enumerate(zip(chosen, rejected, strict=False)) if one != other),
            min(len(chosen), len(rejected)),
        )
        if common == len(chosen) == len(rejected):
            raise ChatError("chosen and rejected are the same")
        if not common:
            raise ChatError("chosen and rejected have no message in common at their beginning, and there is no prompt")
        tools = _tools(row)
        encoded = []
        for name, messages in (("chosen", chosen), ("rejected", rejected)):
            try:
                encoded.append(self._encoded(messages, tools, common))
            except ChatError as error:
                raise ChatError(f"{name}: {error}") from None
        return encoded[0], encoded[1]

    def _encoded(self, messages: list[Message], tools: list[Any] | None, first: int) -> Conversation:
        """Return a conversation as tokens; its answers are those from message `first` on. Raises ChatError."""
        _check_characters([messages, tools])
        if not any(message["role"] == _ASSISTANT for message in messages[first:]):
            raise ChatError("it has no answer: no message is of the role assistant")
        template = self._templates["default"]
        if tools is not None:
            template = self._templates.get("tool_use", template)
        text, spans = _rendered(template, messages, tools)
        left_out = 0
        if not template.has_generation:
            answers = [n for n, message in enumerate(messages) if n >= first and message["role"] == _ASSISTANT]
            answered = [self._answer(template, text, messages[: number + 1], tools) for number in answers]
            spans = [span for span in answered if span is not None]
            left_out = len(answered) - len(spans)
        elif first:
            start = len(_rendered(template, messages[:first], tools)[0])
            spans = [span for span in spans if span[0] >= start]
        ids, places = self._tokenizer.encode_places(text)
        learned = _within(places, spans)
        if not learned.any():
            why = (
                "the template writes each otherwise than after its generation prompt, or otherwise once more messages "
                "follow; enclose answers in {% generation %} and {% endgeneration %} there"
            )
            raise ChatError(
                f"it has no answer that can be learned: {why if left_out else 'the template writes none of them'}"
            )
        return Conversation(ids, learned, left_out)

    def _answer(self, template: Any, text: str, messages: list[Message], tools: list[Any] | None) -> Span | None:
        """Return (start, end) of the last message in a text, in characters; None if the text has it in another form."""
        before = messages[:-1]
        try:
            asked = _rendered(template, before, tools, prompt=True)[0]
            answered = _rendered(template, messages, tools)[0]
            start, end = len(asked), len(answered)
            if (
                asked == _rendered(template, before, tools)[0]
            ):  # no generation prompt: an answer may begin with a header
                other = _rendered(template, [*before, {"role": _ASSISTANT, "content": _PROBE}], tools)[0]
                start = max(start, _common(answered, other))
        except ChatError:  # such as for an answer that nothing precedes
            return None
        if not (text.startswith(answered) and answered.startswith(asked)):
            return None
        # What follows the token that ends an answer, such as a newline, is the template's.
        spoken = answered[start:].rstrip()
        return start, start + len(spoken) if spoken.endswith(self._special) else end


def _rendered(
    template: Any, messages: list[Message], tools: list[Any] | None, prompt: bool = False
) -> tuple[str, list[Span]]:
    try:
        rendered: tuple[str, list[Span]] = template.render(messages, tools, prompt)
        return rendered
    except Exception as error:  # a template is a program
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ChatError(f"the chat template rejects it: {reason}") from None


def _common(one: str, other: str) -> int:
    """Return the number of characters that two texts have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (left, right) in pairs if left != right), min(len(one), len(other)))


def _within(places: Array, spans: list[Span]) -> Array:
    """Return uint8[n], 1 for each token with a character in a span; `places` are the tokens' characters, [n, 2]."""
    result = np.zeros(len(places), np.uint8)
    for start, end in spans:
        result[np.searchsorted(places[:, 1], start, "right") : np.searchsorted(places[:, 0], end, "left")] = 1
    return result


def _messages(row: Row) -> list[Message]:
    key = "messages" if row.get("messages") is not None else "conversations"
    given = row.get(key)
    if given is None:
        raise ChatError("it has neither messages nor conversations")
    if not isinstance(given, list):
        raise ChatError(f"{key} is not a list")
    if not given:
        raise ChatError(f"{key} is empty")
    return [_message(message, number) for number, message in enumerate(given, 1)]


def _pair(row: Row) -> tuple[list[Message], list[Message]]:
    """Return the messages with the chosen answer and those with the rejected answer. Raises ChatError."""
    prompt = _listed(row.get("prompt"), "prompt", "user")
    both = []
    for name in ("chosen", "rejected"):
        messages = _listed(row.get(name), name, _ASSISTANT)
        if not messages:
            raise ChatError(f"{name} is empty")
        # Some data sets repeat the prompt in front of both answers.
        is_text = isinstance(row.get("prompt"), str)
        repeats = messages[: len(prompt)] == prompt or (is_text and messages[0]["role"] != _ASSISTANT)
        both.append(messages if repeats else prompt + messages)
    return both[0], both[1]


def _listed(given: Any, name: str, role: str) -> list[Message]:
    if given is None:
        return []
    if isinstance(given, str):
        given = [{"role": role, "content": given}]
    if not isinstance(given, list):
        raise ChatError(f"{name} is neither text nor a list of messages")
    try:
        return [_message(message, number) for number, message in enumerate(given, 1)]
    except ChatError as error:
        raise ChatError(f"{name}: {error}") from None


def _message(given: Any, number: int) -> Message:
    """Return a message in the form that templates take: without fields that are null, its content as one text."""
    if not isinstance(given, dict):
        raise ChatError(f"message {number} is not an object")
    message = {key: value for key, value in given.items() if value is not None}
    if "role" not in message and "from" in message:
        message["role"] = message.pop("from")
        message["role"] = _SHAREGPT.get(str(message["role"]), message["role"])
        message["content"] = message.pop("value", None)
    role = message.get("role")
    if role not in _ROLES:
        raise ChatError(f"message {number} has {f'the unknown role {role!a:.40}' if role is not None else 'no role'}")
    content = message.pop("content", None)
    if content is not None:
        message["content"] = _content(content, number)
    elif not (role == _ASSISTANT and message.get("tool_calls")):
        raise ChatError(f"message {number} has no content")
    thoughts = next((message[key] for key in _THOUGHTS if key in message), None)
    return message if thoughts is None else {"thinking": thoughts, **message, "reasoning_content": thoughts}


def _content(content: Any, number: int) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ChatError(f"the content of message {number} is not text")
    texts: list[str] = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if kind != "text":
            raise ChatError(f"message {number} has content of type {kind!a:.40}; only text can be learned")
        if not isinstance(part.get("text"), str):
            raise ChatError(f"message {number} has a part without text")
        texts.append(part["text"])
    return "".join(texts)


def _tools(row: Row) -> list[Any] | None:
    tools = row.get("tools")
    if isinstance(tools, str):  # columns of Parquet cannot have objects of various fields
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            raise ChatError("tools is not JSON") from None
    if tools is None or (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        return tools
    raise ChatError("tools is not a list of objects")


def _check_characters(value: Any) -> None:
    """Raise ChatError for text that is no UTF-8, or that has the marks of `chat_template`."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ChatError("it has half of a surrogate pair, which is not a character") from None
    if "\ufdd0" in text or "\ufdd1" in text:
        raise ChatError("it has U+FDD0 or U+FDD1, which are no characters")
