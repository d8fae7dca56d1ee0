"""Compile and render chat templates as transformers does. Imports jinja2, which is optional: import this module late."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_BEGIN, _END = "\ufdd0", "\ufdd1"
"""They enclose text that a template has in `generation`. Unicode reserves them for a program's own use: they are no text."""
MARKS = re.compile(f"[{_BEGIN}{_END}]")

_LIMIT = 10.0
"""Seconds of computing in which the text of one conversation must be complete; it takes milliseconds."""


class _Generation(Extension):
    """The tag `{% generation %}`, with which a template marks the answers of an assistant."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    @staticmethod
    def marked(caller: Callable[[], str]) -> str:
        """Return the text of a block between marks."""
        return f"{_BEGIN}{caller()}{_END}"


class _Namespace(Namespace):
    """jinja's `namespace`, which refuses names such as `__class__`: Python would look these up outside the sandbox."""

    def __init__(*args: Any, **values: Any) -> None:  # without `self`, which may be a name in `values`
        for name in dict(*args[1:], **values):
            _check_name(name)
        Namespace.__init__(*args, **values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace cannot have {name}")


class _Dict:
    """The functions of `dict` that templates use, without the type itself."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return `dict.fromkeys(...)`."""
        return dict.fromkeys(*args)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON. jinja's own filter writes <, > and & as escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Compiled:
    """A compiled chat template.

    Args:
        source: the template.
        tokens: the special tokens that it may use, by names such as bos_token.
        now: the present time, which it may write.

    Raises:
        jinja2.TemplateSyntaxError: it is not a template.
    """

    def __init__(self, source: str, tokens: dict[str, str], now: datetime) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(
            raise_exception=_raise_exception, strftime_now=now.strftime, dict=_Dict(), namespace=_Namespace
        )
        methods = environment.parse(source).find_all(nodes.ExtensionAttribute)
        self.has_generation = any(method.name == "marked" for method in methods)
        """Whether it says itself what an assistant generates."""
        self._template = environment.from_string(source)
        self._tokens = tokens

    def render(
        self, messages: list[Any], tools: list[Any] | None, prompt: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of messages, and (start, end) of the characters enclosed in `generation`.

        Args:
            messages: the messages.
            tools: descriptions of functions.
            prompt: whether to add the beginning of an answer (`add_generation_prompt`).

        Raises:
            Exception: of any type; a template is a program.
        """
        with _limited():
            text = self._template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **self._tokens
            )
        return _unmarked(text) if self.has_generation else (text, [])


@contextmanager
def _limited() -> Iterator[None]:
    """End a template that computes for too long by a TemplateError. Only the main thread gets signals, and is limited."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> NoReturn:
        raise TemplateError(f"it did not end within {_LIMIT:g} s")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _unmarked(marked: str) -> tuple[str, list[tuple[int, int]]]:
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    size = depth = start = 0
    for part in re.split(f"({MARKS.pattern})", marked):
        if part == _BEGIN:
            start = start if depth else size
            depth += 1
        elif part == _END:
            depth -= 1
            if depth == 0:
                spans.append((start, size))
        else:
            parts.append(part)
            size += len(part)
    return "".join(parts), spans
