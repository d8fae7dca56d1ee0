"""Turn pydantic's errors into messages: line, key, problem and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from podrun.runtime.config.base import PLUGIN_PATTERN
from podrun.runtime.contract import UserError
from podrun.runtime.wording import counted, first_rows

from .schema_tree import Location, SchemaTree
from .short import short

Row = tuple[int, str]
"""(line number, message) of a mistake; the line is 0 if unknown."""
SECRET = "secret"
"""Error type for values that messages must not show."""

SHOWN = 9  # mistakes listed in full, so that the message fits a small terminal


def mistakes_error(title: str, rows: Iterable[Row]) -> UserError:
    """Return one error that lists all mistakes of a file, sorted by line."""
    texts = [text for _, text in sorted(rows, key=lambda row: row[0])]
    head = f"{title}: {counted(len(texts), 'mistake')}"
    return UserError("\n".join([head, *(f"  {text}" for text in first_rows(texts, SHOWN))]))


def mistake_row(dotted: str, what: str, lines: Mapping[str, int], given: Iterable[str] = ()) -> Row:
    """Return the row that says what is wrong with a key.

    Args:
        dotted: the dotted key.
        what: the problem.
        lines: the line of each key in the file.
        given: keys that the command line sets, which are in no line of the file.
    """
    above = _self_and_parents(dotted)
    line = next((lines[d] for d in above if d in lines), 0)
    named = _named(dotted, what, given)
    overridden = any(d in given for d in above) or (not line and any(d.startswith(f"{dotted}.") for d in given))
    where = "command line: " if overridden else f"line {line}: " if line else ""
    where = f"command line ({', '.join(named)}): " if named and not overridden else where
    key = dotted if dotted.isprintable() else repr(dotted)
    return line, f"{where}{key}{': ' if key else ''}{what}"


def describe_mistakes(
    model: type[BaseModel], errors: list[ErrorDetails], lines: Mapping[str, int], given: Iterable[str] = ()
) -> list[Row]:
    """Return one row for each wrong key of a file whose schema is `model`."""
    tree = _tree(model)
    problems: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        location = (*error["loc"], "name") if error["type"] == "unknown_choice" else error["loc"]
        problems.setdefault(".".join(tree.keys_to(location)), []).append(error)
    rows = _rows_of_another_choice(tree, problems, lines, given)
    for dotted, key_errors in problems.items():
        overridden = any(d in given for d in _self_and_parents(dotted))
        # a key that accepts two types has one error for each
        what = ", or ".join(_problem(tree, error, overridden) for error in key_errors)
        what = what.replace(", or must be ", " or ")
        text = f"{what}{_value(key_errors[0])}{_choice_hint(key_errors[0])}"
        if dotted:
            rows += [mistake_row(dotted, line, lines, given) for line in text.split("\n")]
        else:  # contradictions between sections: one line each, which begins with a key
            rows += [_contradiction_row(line, lines, given) for line in text.split("\n")]
    return rows


def _rows_of_another_choice(
    tree: SchemaTree, problems: dict[str, list[ErrorDetails]], lines: Mapping[str, int], given: Iterable[str]
) -> list[Row]:
    """Return a row for each section with keys of another choice, and remove the errors of these keys from `problems`."""
    sections: dict[str, list[str]] = {}
    for dotted, errors in problems.items():
        if errors[0]["type"] == "extra_forbidden" and dotted in tree.paths and "." in dotted:
            sections.setdefault(dotted.rpartition(".")[0], []).append(dotted)
    rows = []
    for section, keys in sections.items():
        names = ", ".join(key.rpartition(".")[2] for key in keys)
        allowed = ", ".join(tree.keys_at(problems[keys[0]][0]["loc"][:-1]))
        what = "there is no such key; it belongs" if len(keys) == 1 else "there are no such keys; they belong"
        what += f" to another choice of {section}.name; allowed here: {allowed}."
        line, text = mistake_row(keys[0], what, lines, given)
        rows.append((line, text.replace(f"{keys[0]}: ", f"{section}.{names}: ", 1)))
        for key in keys:
            del problems[key]
    return rows


def _contradiction_row(what: str, lines: Mapping[str, int], given: Iterable[str]) -> Row:
    key, _, rest = what.partition(" ")
    key = key.rstrip(":")
    named = [] if any(d in given for d in _self_and_parents(key)) else _named("", rest, given)
    line, text = mistake_row(key, "", lines, given)
    where = f"command line ({', '.join(named)}): " if named else text.removesuffix(f"{key}: ")
    return line, where + what


def _named(section: str, what: str, given: Iterable[str]) -> list[str]:
    """Return the keys below `section` that were set on the command line and whose name and value appear in `what`."""
    below = f"{section}." if section else ""
    inner = {key: key.removeprefix(below) for key in given if key.startswith(below) and key != section}
    return sorted(key for key, name in inner.items() if re.search(rf"(?<![\w.]){re.escape(name)} [\d'\"-]", what))


@cache
def _tree(model: type[BaseModel]) -> SchemaTree:
    return SchemaTree(model)


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
    "tuple_type": "a list",
    "list_type": "a list",
}
_OFF = {
    "sample": "sample.tokens=0 for no sample",
    "eval": "eval.every=0 for none before the end",
    "checkpoint": "checkpoint.every=0 for none before the end",
}
_SECTION = ("model_type", "model_attributes_type")


def _problem(tree: SchemaTree, error: ErrorDetails, overridden: bool) -> str:
    """Describe the problem with a value, without quoting the value."""
    kind = error["type"]
    if kind == "missing":
        return "required, but not given"
    if kind == "extra_forbidden":
        return f"there is no such key; {_key_hint(tree, error['loc'])}"
    if kind == "invalid_key":
        return "a key must be text; YAML reads on, off, yes, no, numbers and dates as something else: use quotes"
    if kind == "unknown_choice":
        return error["msg"].removeprefix("`name` ")
    if kind in _SECTION and error["input"] is None:
        key = ".".join(tree.keys_to(error["loc"]))
        off = f", or give {_OFF[key]}" if key in _OFF else ""
        return f"must be a section; leave it out for its defaults{off}"
    if kind in _SECTION:
        return f"must be a section with some of the keys {', '.join(tree.keys_at(error['loc']))}"
    if kind == "string_type":
        typed = ", and on the command line in both kinds: 'key=\"value\"'" if overridden else ""
        return f"must be text; put it in quotes{typed}"
    if kind == "string_pattern_mismatch" and error["ctx"]["pattern"] == PLUGIN_PATTERN:
        return "must be package.module:attribute"
    if kind in _MUST_BE:
        return f"must be {_MUST_BE[kind]}"
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _value(error: ErrorDetails) -> str:
    value = error["input"]
    if error["type"] == "unknown_choice":
        value = _choice(error)
    if error["type"] in ("extra_forbidden", "invalid_key", SECRET) or isinstance(value, (dict, BaseModel)):
        return ""
    return f" (it is {'empty' if value is None else short(value)})"


def _choice(error: ErrorDetails) -> Any:
    return error["input"].get("name") if isinstance(error["input"], dict) else error["input"]


def _choice_hint(error: ErrorDetails) -> str:
    if error["type"] != "unknown_choice" or error["loc"] != ("model",):
        return ""
    from podrun.runtime.config.model import GPT2_PRESETS  # takes long

    return f"; did you mean model.preset={_choice(error)}?" if _choice(error) in tuple(GPT2_PRESETS) else ""


def _key_hint(tree: SchemaTree, location: Location) -> str:
    """Return a hint for an unknown key: the same name in another section, or the most similar name in this one."""
    parts = tree.keys_to(location)
    here = tree.keys_at(location[:-1])
    elsewhere = [path for path in tree.paths if path.rpartition(".")[2] == parts[-1]]
    allowed = f"allowed here: {', '.join(here)}."
    near = difflib.get_close_matches(parts[-1], here, n=1, cutoff=0.5)
    short_for = [path for path in tree.paths if _initials(path.rpartition(".")[2]) == parts[-1]]
    short_for.sort(key=lambda path: path.count("."))
    meant = elsewhere[:3] or [".".join([*parts[:-1], name]) for name in near] or short_for[:3]
    return f"did you mean {' or '.join(meant)}?" if meant else allowed


def _initials(name: str) -> str:
    """Return `lr` for `learning_rate`; empty for a single word."""
    words = name.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else ""


def _self_and_parents(dotted: str) -> list[str]:
    parts = dotted.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
