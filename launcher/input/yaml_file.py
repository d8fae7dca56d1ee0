"""YAML files that people write: strict, and with the line of every key."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from podrun.runtime.contract import UserError


class _Loader(yaml.SafeLoader):
    """YAML as people write it: `1e-3` is a number (YAML 1.1 says text), and a key that is given twice is an error."""

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if "\0" in node.value:
            problem = "the character \\0 cannot be in a path, a name or an environment variable"
            raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.composer.ComposerError(None, None, "a key must be a word", key.start_mark)
            if key.value in seen:
                problem = f"the key {key.value!r} is given twice in one section; keep one of them"
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$|^[-+]?\.\d+[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def read_mapping(
    path: Path, title: str, what: str, *, instead: Callable[[Path], str], start: str
) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a YAML file of `key: value` lines, and the line number of each dotted key.

    Raises UserError, which begins with `title` and says with `instead` and `start` what to do, if it is anything else.
    `what` names the kind of file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{title}: is not a text file (not UTF-8); {start}") from None
    except OSError as error:
        raise UserError(f"{title}: cannot read {what}: {error.strerror}; {instead(path)}") from None
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
    """The value of a YAML text, and the line of each dotted key in it. Raises yaml.YAMLError, and nothing else."""
    try:
        lines = dict(_line_numbers(yaml.compose(text, Loader=_Loader)))
        return yaml.load(text, Loader=_Loader), lines
    except RecursionError:
        raise yaml.YAMLError("its sections are nested too deeply, or one contains itself") from None
    except ValueError as error:  # PyYAML leaves these as they are: a date in month 13, a number of 5000 digits
        raise yaml.YAMLError(f"a value cannot be read: {error}; put it in quotes if it is text") from None


_HINTS = {
    "'\\t'": "indent with spaces, not tabs",
    "mapping values are not allowed": "check the indentation; a text with a colon in it needs quotes",
    "but got '['": 'a text with a bracket in it needs quotes inside of [ ]: ["n[0-3]"]',
}


def yaml_problem(error: yaml.YAMLError) -> str:
    """Line, column, what is wrong there, and where it helps what to do."""
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
