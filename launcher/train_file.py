"""Reads train.yaml and `key.path=value` overrides into a validated config; all mistakes are found and shown at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError

from .config_mistakes import describe_mistakes, short

_SHOWN = 9  # mistakes shown in full; the whole message should fit a small terminal


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


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The job that `path` and the overrides describe.

    Raises UserError that lists every mistake: line, key, value, what is allowed, the nearest key.
    """
    values, lines = _read_yaml(path)
    given = _apply_overrides(values, overrides)
    try:
        return Config.model_validate(values)
    except ValidationError as invalid:
        rows = describe_mistakes(invalid.errors(), lines, given)
    count = "1 mistake" if len(rows) == 1 else f"{len(rows)} mistakes"
    if len(rows) > _SHOWN:
        rows = [*rows[:_SHOWN], f"and {len(rows) - _SHOWN} more"]
    raise UserError(f"{path}: {count}\n" + "\n".join(f"  {row}" for row in rows)) from None


def _read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The file's values, and the line number of each dotted key."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a text file (not UTF-8); give the train.yaml of the job") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read the job: {error.strerror}; {_what_to_read(path)}") from None
    try:
        values, lines = _parse(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {_yaml_problem(error)}") from None
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        what = "is empty" if values is None else f"holds {kind}, not `key: value` lines"
        raise UserError(f"{path}: {what}; `podrun schema` lists the keys, examples/ has files to start from")
    return values, lines


def _what_to_read(path: Path) -> str:
    """What the user may have meant by a file that cannot be read."""
    if "=" in path.name:
        return "the train.yaml comes first, then the key.path=value overrides"
    try:
        names = [p.name for p in path.parent.iterdir() if p.is_file()]
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, names, n=2, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(str(path.parent / n) for n in near)}?"
    return "give the path of a train.yaml; `podrun --help` shows how, and lists the commands"


def _parse(text: str) -> tuple[Any, dict[str, int]]:
    """The value of a YAML text, and the line of each dotted key in it. Raises yaml.YAMLError, and nothing else."""
    try:
        lines = dict(_line_numbers(yaml.compose(text, Loader=_Loader)))
        return yaml.load(text, Loader=_Loader), lines
    except RecursionError:
        raise yaml.YAMLError("its sections are nested too deeply, or one contains itself") from None
    except ValueError as error:  # PyYAML leaves these as they are: a date in month 13, a number of 5000 digits
        raise yaml.YAMLError(f"a value cannot be read: {error}; put it in quotes if it is text") from None


_YAML_HINTS = {
    "'\\t'": "indent with spaces, not tabs",
    "mapping values are not allowed": "check the indentation; a text with a colon in it needs quotes",
}


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    if problem.startswith("but "):
        problem = f"{getattr(error, 'context', '')}, {problem}"
    hint = next((f"; {hint}" for sign, hint in _YAML_HINTS.items() if sign in problem), "")
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
            rows += _line_numbers(value, f"{prefix}{index}.")
    return rows


def _apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> set[str]:
    """Sets each `a.b=value` in `values`; returns the dotted keys. Raises UserError for a malformed override."""
    given = set()
    problems = []
    for override in overrides:
        try:
            given.add(_apply(values, override))
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems[:_SHOWN]))
    return given


def _apply(values: dict[str, Any], override: str) -> str:
    dotted, equals, text = override.partition("=")
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", dotted):
        raise UserError(
            f"{short(override)} on the command line is not an override: write key.path=value, "
            "for example optimizer.learning_rate=1e-3"
        )
    try:
        value = _parse(text)[0] if text else ""
    except yaml.YAMLError as error:
        raise UserError(f"{short(override)} on the command line: {_yaml_problem(error)}") from None
    _set(values, dotted.split("."), value, override)
    return dotted


def _set(values: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    for depth, key in enumerate(keys[:-1]):
        inner = values.get(key)
        if inner is None:
            inner = {}
        elif isinstance(inner, str):  # `model: gpt2` stands for `model: {name: gpt2}`
            inner = {"name": inner}
        elif not isinstance(inner, dict):
            section = ".".join(keys[: depth + 1])
            raise UserError(
                f"{short(override)} on the command line: {section} is {short(inner)}, it has no keys below it; "
                f"write {section}=value"
            )
        values[key] = inner = dict(inner)
        values = inner
    values[keys[-1]] = value
