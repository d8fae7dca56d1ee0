"""Parse hand-written YAML files strictly, and record the line of every key."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from podrun.runtime.contract import UserError

BYTES = 1 << 19
"""Maximum size of a YAML text, in bytes."""
NODES = 20_000
"""Maximum number of keys and values. An alias counts as all values that it repeats. 1024 hosts with addresses need 7000."""
DEPTH = 50
"""Maximum nesting depth."""
_NUMBER = 100  # maximum length of a number or a date, in characters
_KEY = 100  # maximum length of a key, in characters


class _Loader(yaml.SafeLoader):
    """A strict YAML loader: `1e-3` is a number (a text in YAML 1.1), and a key that stands there twice is an error.

    Limits are checked at each parser event, so input that would take minutes or exhaust memory is rejected early.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0
        self._depth = 0
        self._sizes: dict[str, int] = {}  # number of nodes behind each complete anchor

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor: Any = getattr(event, "anchor", None)
        before = self._nodes
        if isinstance(event, yaml.AliasEvent):
            if anchor in self.anchors and anchor not in self._sizes:
                raise _mistake(event, f"of the sections around *{anchor}, one contains itself; write its values out")
            self._nodes += self._sizes.get(anchor, 0)
        else:
            if getattr(event, "tag", None):
                raise _mistake(event, f"the tag {_tag(event.tag)} is not allowed; write the value without it")
            self._nodes += 1
        self._depth += 1
        if self._nodes > NODES:
            raise _mistake(
                event,
                f"more than {NODES} values up to here (an alias counts for all that it stands for); shorten the lists: "
                "hosts may be a range, n[0-99]",
            )
        if self._depth > DEPTH:
            raise _mistake(event, f"nested more than {DEPTH} levels deep; no key of podrun's is below the tenth")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._sizes[anchor] = self._nodes - before
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if "\0" in node.value:
            raise _mistake(node, "the character \\0 cannot be in a path, a name or an environment variable")
        if not _is_unicode(node.value):
            raise _mistake(
                node,
                "half of a character (\\ud800 to \\udfff), which cannot be written to a file; write the whole character",
            )
        if len(node.value) > _NUMBER and node.tag != "tag:yaml.org,2002:str":
            raise _mistake(node, f"a number of {len(node.value)} characters; put it in quotes if it is text")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _mistake(key, "a key must be a word")
            if len(key.value) > _KEY:  # the dotted names of all keys below repeat it
                raise _mistake(key, f"a key of {len(key.value)} characters; at most {_KEY} are allowed")
            if key.value in seen:
                raise _mistake(key, f"the key {key.value!r} is given twice in one section; keep one of them")
            seen.add(key.value)
        return node


def _is_unicode(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _mistake(place: Any, problem: str) -> yaml.YAMLError:
    """Return a YAML error at the position of a node or an event."""
    return yaml.composer.ComposerError(None, None, problem, place.start_mark)


def _tag(tag: str) -> str:
    """Return the start of a tag, as written in the file."""
    return tag.replace("tag:yaml.org,2002:", "!!")[:_NUMBER]


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$|^[-+]?\.\d+[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def read_mapping(
    path: Path, title: str, what: str, *, instead: Callable[[Path], str], start: str
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the values of a YAML mapping file, and the line number of each dotted key.

    Args:
        path: the file.
        title: first words of every error message.
        what: the kind of file, for messages.
        instead: returns what to do if the file cannot be read.
        start: what to do if the content is wrong.

    Raises:
        UserError: the file cannot be read, is too large, or is not a mapping.
    """
    try:
        with path.open("rb") as file:  # read at most BYTES: it may be a device, or a large data file
            data = file.read(BYTES + 1)
        text = data.decode("utf-8-sig") if len(data) <= BYTES else ""
    except UnicodeDecodeError:
        raise UserError(f"{title}: is not a text file (not UTF-8); {start}") from None
    except OSError as error:
        raise UserError(f"{title}: cannot read {what}: {error.strerror}; {instead(path)}") from None
    if len(data) > BYTES:
        raise UserError(f"{title}: is larger than {BYTES >> 10} KiB, too large for a file of settings; {start}")
    try:
        values, lines = parse(text)
    except yaml.YAMLError as error:
        raise UserError(f"{title}: not valid YAML: {yaml_problem(error)}") from None
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        problem = "is empty" if values is None else f"holds {kind}, not `key: value` lines"
        raise UserError(f"{title}: {problem}; {start}")
    return values, lines


def parse(text: str) -> tuple[Any, dict[str, int]]:
    """Return (value, {dotted key: line}) of a YAML text. Raises only yaml.YAMLError."""
    if len(text) > BYTES:
        raise yaml.YAMLError(f"longer than {BYTES >> 10} KiB; give a shorter value, or put it in a file of its own")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = dict(_line_numbers(node))  # before the loader expands merge keys
        return None if node is None else loader.construct_document(node), lines
    except (ValueError, OverflowError) as error:  # PyYAML raises these for a date in month 13, or "\\Uffffffff"
        raise yaml.YAMLError(f"a value cannot be read: {error}; put it in quotes if it is text") from None


_HINTS = {
    "'\\t'": "indent with spaces, not tabs",
    "mapping values are not allowed": "check the indentation; a text with a colon in it needs quotes",
    "but got '['": 'a text with a bracket in it needs quotes inside of [ ]: ["n[0-3]"]',
}


def yaml_problem(error: yaml.YAMLError) -> str:
    """Return the message of a YAML error: line, column, problem, and a hint for common mistakes."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    if problem.startswith("but "):
        problem = f"{getattr(error, 'context', '')}, {problem}"
    hint = next((f"; {hint}" for sign, hint in _HINTS.items() if sign in problem), "")
    return where + problem + hint


def _line_numbers(node: yaml.Node | None, prefix: str = "") -> list[tuple[str, int]]:
    rows: list[tuple[str, int]] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}{key.value}"
            rows.append((dotted, key.start_mark.line + 1))
            rows += _line_numbers(value, f"{dotted}.")
    if isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            rows.append((f"{prefix}{index}", value.start_mark.line + 1))
            rows += _line_numbers(value, f"{prefix}{index}.")
    return rows
