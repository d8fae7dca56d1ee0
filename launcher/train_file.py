"""Reads train.yaml and `key.path=value` overrides into a validated config; all mistakes are found and shown at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from podrun.runtime.config import GPT2_PRESETS, PLUGIN_PATTERN, Config
from podrun.runtime.contract import UserError

_SHOWN = 11  # mistakes shown in full; the whole message should fit a small terminal


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
    for override in overrides:
        dotted, equals, text = override.partition("=")
        if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", dotted):
            raise UserError(
                f"{_short(override)} on the command line is not an override: write key.path=value, "
                "for example optimizer.learning_rate=1e-3"
            )
        try:
            value = _parse(text)[0] if text else ""
        except yaml.YAMLError as error:
            raise UserError(f"{_short(override)} on the command line: {_yaml_problem(error)}") from None
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
            section = ".".join(keys[: depth + 1])
            raise UserError(
                f"{_short(override)} on the command line: {section} is {_short(inner)}, it has no keys below it; "
                f"write {section}=value"
            )
        values[key] = inner = dict(inner)
        values = inner
    values[keys[-1]] = value


def _describe_all(errors: list[ErrorDetails], lines: dict[str, int], given: set[str]) -> list[str]:
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
    return f" (it is {'empty' if value is None else _short(value)})"


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


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
