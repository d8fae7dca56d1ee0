"""Pydantic's errors as rows for people: line, key, what is wrong with the value, what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from podrun.runtime.config import GPT2_PRESETS, PLUGIN_PATTERN, Config


def describe_mistakes(errors: list[ErrorDetails], lines: dict[str, int], given: set[str]) -> list[str]:
    """One row for each wrong key, in the order of the file: where, which key, what is wrong, what would be right."""
    problems: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        location = (*error["loc"], "name") if error["type"] == "unknown_choice" else error["loc"]
        problems.setdefault(".".join(_walk(location)[0]), []).append(error)
    rows = []
    for dotted, found in problems.items():
        line = next((lines[d] for d in _self_and_parents(dotted) if d in lines), 0)
        overridden = any(d in given for d in _self_and_parents(dotted))
        where = "command line: " if overridden else f"line {line}: " if line else ""
        key = dotted if dotted.isprintable() else repr(dotted)
        # A key that may be of two types has a message for each.
        what = ", or ".join(map(_what, found)).replace(", or must be ", " or ")
        rows.append((line, f"{where}{key}{': ' if key else ''}{what}{_value(found[0])}{_choice_hint(found[0])}"))
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


_MUST_BE = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "path_type": "a path",
    "dict_type": "a section of `key: value` lines",
}
_SECTION = ("model_type", "model_attributes_type")


def _what(error: ErrorDetails) -> str:
    """What is wrong with a value, without the value."""
    kind = error["type"]
    if kind == "missing":
        return "required, but not given"
    if kind == "extra_forbidden":
        return f"there is no such key; {_key_hint(error['loc'])}"
    if kind == "invalid_key":
        return "a key must be text; YAML reads on, off, yes, no, numbers and dates as something else: use quotes"
    if kind == "unknown_choice":
        return error["msg"].removeprefix("`name` ")
    if kind in _SECTION:
        return f"must be a section with some of the keys {', '.join(_keys(_walk(error['loc'])[1]))}"
    if kind == "string_type":
        return "must be text; put it in quotes, and on the command line in both kinds: 'key=\"value\"'"
    if kind == "string_pattern_mismatch" and error["ctx"]["pattern"] == PLUGIN_PATTERN:
        return "must be package.module:attribute"
    if kind in _MUST_BE:
        return f"must be {_MUST_BE[kind]}"
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _value(error: ErrorDetails) -> str:
    value = error["input"]
    if error["type"] == "unknown_choice":
        value = _choice(error)
    if error["type"] in ("extra_forbidden", "invalid_key") or isinstance(value, (dict, BaseModel)):
        return ""
    return f" (it is {'empty' if value is None else short(value)})"


def _choice(error: ErrorDetails) -> Any:
    return error["input"].get("name") if isinstance(error["input"], dict) else error["input"]


def _choice_hint(error: ErrorDetails) -> str:
    if error["type"] == "unknown_choice" and error["loc"] == ("model",) and _choice(error) in tuple(GPT2_PRESETS):
        return f"; did you mean model.preset={_choice(error)}?"
    return ""


def _key_hint(location: tuple[str | int, ...]) -> str:
    """The key that was meant: the same name in another section, or the nearest name in this one."""
    parts, _ = _walk(location)
    _, section = _walk(location[:-1])
    elsewhere = [path for path in _paths() if path.rpartition(".")[2] == parts[-1]]
    allowed = f"allowed here: {', '.join(_keys(section))}"
    if ".".join(parts) in elsewhere:  # `data.path` where `data.name` is a source without a path
        return f"it belongs to another choice of {'.'.join(parts[:-1])}.name; {allowed}"
    near = difflib.get_close_matches(parts[-1], _keys(section), n=1, cutoff=0.5)
    meant = elsewhere[:3] or [".".join([*parts[:-1], name]) for name in near]
    return f"did you mean {' or '.join(meant)}?" if meant else allowed


# --- the JSON schema ------------------------------------------------------------------------------------------------


@cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = Config.model_json_schema()
    return schema


def _walk(location: tuple[str | int, ...]) -> tuple[list[str], dict[str, Any]]:
    """The keys of the file on the way to `location`, without the names of union branches, and the schema there."""
    at, keys = _schema(), []
    for part in map(str, location):
        inner = _step(at, part)
        if inner is not None and part in at.get("properties", {}):
            keys.append(part)
        elif inner is None and "anyOf" not in at and part != "[key]":
            keys.append(part)  # no key of ours: a mistake, or the user's own below `env` or `options`
        at = inner or at
    return keys, at


def _step(at: dict[str, Any], part: str) -> dict[str, Any] | None:
    """One step down: into a property, or into the branch of a seam that `part` names."""
    if part in at.get("properties", {}):
        return _dereference(at["properties"][part])
    for branch in _branches(at):
        if branch.get("properties", {}).get("name", {}).get("const", "plugin") == part:
            return branch
    return None


def _branches(at: dict[str, Any]) -> list[dict[str, Any]]:
    return [_dereference(branch) for branch in [*at.get("oneOf", []), *at.get("anyOf", [])]]


def _dereference(at: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in at:
        found: dict[str, Any] = _schema()["$defs"][at["$ref"].rpartition("/")[2]]
        return found
    return at


def _keys(section: dict[str, Any]) -> list[str]:
    """The keys that a section, or the default choice of a seam, knows."""
    return list(section.get("properties", {}))


@cache
def _paths() -> list[str]:
    """Every dotted key that a train.yaml can have."""

    def below(at: dict[str, Any], prefix: str) -> Iterator[str]:
        for name, value in at.get("properties", {}).items():
            yield f"{prefix}{name}"
            inner = _dereference(value)
            for section in (inner, *_branches(inner)):
                yield from below(section, f"{prefix}{name}.")

    return list(dict.fromkeys(below(_schema(), "")))


# --- words ----------------------------------------------------------------------------------------------------------


def _self_and_parents(dotted: str) -> list[str]:
    parts = dotted.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
