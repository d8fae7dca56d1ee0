"""Reads train.yaml and `key.path=value` overrides into a validated config; all mistakes are found and shown at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError

_SHOWN = 11  # mistakes shown in full; the whole message should fit a small terminal


class _Loader(yaml.SafeLoader):
    """YAML as people write it: `1e-3` is a number (YAML 1.1 says text), and a key that is given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (dict, list)):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


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
        rows = _describe_all(invalid.errors(), lines, given)
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
        near = difflib.get_close_matches(path.name, [p.name for p in _siblings(path)], n=2, cutoff=0.5)
        hint = f"; did you mean {' or '.join(str(path.parent / n) for n in near)}?" if near else ""
        raise UserError(f"{path}: cannot read the job: {error.strerror}{hint}") from None
    try:
        node = yaml.compose(text, Loader=_Loader)
        values = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {_yaml_problem(error)}") from None
    if not isinstance(values, dict):
        what = "is empty" if values is None else f"holds a {type(values).__name__}, not `key: value` lines"
        raise UserError(f"{path}: {what}; `podrun schema` lists the keys, examples/ has files to start from")
    return values, dict(_line_numbers(node))


def _siblings(path: Path) -> list[Path]:
    return list(path.parent.iterdir()) if path.parent.is_dir() else []


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + str(getattr(error, "problem", None) or error).splitlines()[0]


def _line_numbers(node: yaml.Node | None, prefix: str = "") -> list[tuple[str, int]]:
    rows: list[tuple[str, int]] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}{key.value}"
            rows.append((dotted, key.start_mark.line + 1))
            rows += _line_numbers(value, f"{dotted}.")
    return rows


def _apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> set[str]:
    """Sets each `a.b=value` in `values`; returns the dotted keys. Raises UserError for a malformed override."""
    given = set()
    for override in overrides:
        dotted, equals, text = override.partition("=")
        if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", dotted):
            raise UserError(
                f"{override!r} on the command line is not an override: write key.path=value, "
                "for example optimizer.learning_rate=1e-3"
            )
        try:
            value = yaml.load(text, Loader=_Loader) if text else ""
        except yaml.YAMLError as error:
            raise UserError(f"{override!r} on the command line: {_yaml_problem(error)}") from None
        _set(values, dotted.split("."), value, override)
        given.add(dotted)
    return given


def _set(values: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    for depth, key in enumerate(keys[:-1]):
        inner = values.get(key)
        if inner is None:
            inner = {}
        elif isinstance(inner, str):  # `model: gpt2` stands for `model: {name: gpt2}`
            inner = {"name": inner}
        elif not isinstance(inner, dict):
            raise UserError(f"{override!r}: {'.'.join(keys[: depth + 1])} is {inner!r}, it has no keys below it")
        values[key] = inner = dict(inner)
        values = inner
    values[keys[-1]] = value


def _describe_all(errors: list[ErrorDetails], lines: dict[str, int], given: set[str]) -> list[str]:
    """One row for each wrong key, in the order of the file: where, which key, what is wrong, what would be right."""
    problems: dict[str, list[str]] = {}
    for error in errors:
        location = _clean(error["loc"])
        problems.setdefault(_dotted(location), []).append(_what(error, location))
    rows = []
    for dotted, messages in problems.items():
        line = next((lines[d] for d in _self_and_parents(dotted) if d in lines), 0)
        where = "command line: " if dotted in given else f"line {line}: " if line else ""
        # A key that may be of two types has a message for each.
        rows.append((line, f"{where}{dotted}{': ' if dotted else ''}{', or '.join(messages)}"))
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def _what(error: ErrorDetails, location: tuple[str | int, ...]) -> str:
    kind = error["type"]
    if kind == "missing":
        return "required, but not given"
    if kind == "extra_forbidden":
        keys = _keys_beside(error["loc"])
        near = difflib.get_close_matches(str(location[-1]), keys, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"allowed here: {', '.join(keys)}"
        return f"there is no such key; {hint}"
    value = error["input"]
    shown = "" if isinstance(value, (dict, BaseModel)) else f" (it is {_short(value)})"
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be") + shown


def _keys_beside(location: tuple[str | int, ...]) -> list[str]:
    """The keys that the section at `location[:-1]` knows."""
    schema = Config.model_json_schema()
    at = schema
    for part in location[:-1]:
        at = _resolve(at, schema, str(part))
    return list(at.get("properties", {}))


def _resolve(at: dict[str, Any], schema: dict[str, Any], part: str) -> dict[str, Any]:
    """One step down a JSON schema: into a property, or into the branch of a seam that `part` names."""
    if part in at.get("properties", {}):
        at = at["properties"][part]
    else:
        for branch in at.get("oneOf", []) + at.get("anyOf", []):
            resolved = _dereference(branch, schema)
            name = resolved.get("properties", {}).get("name", {})
            if name.get("const", "plugin") == part:
                return resolved
    return _dereference(at, schema)


def _dereference(at: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in at:
        found: dict[str, Any] = schema["$defs"][at["$ref"].rpartition("/")[2]]
        return found
    return at


_TAGS = {"gpt2", "plugin", "char", "byte", "bpe", "text", "tokens", "python_source", "adamw"}


def _clean(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """`location` without the names of seam branches, which are not keys of the file."""
    seams = {"model", "data", "tokenizer", "optimizer"}
    return tuple(
        part
        for i, part in enumerate(location)
        if not (i and location[i - 1] in seams and part in _TAGS)
        and not (isinstance(part, str) and re.search(r"[\[\(' ]", part))
        and not (part in {"int", "constrained-int"} and i)
    )


def _dotted(location: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in location)


def _self_and_parents(dotted: str) -> list[str]:
    parts = dotted.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
