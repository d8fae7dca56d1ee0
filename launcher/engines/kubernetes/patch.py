"""Change fields of a manifest: `--set PATH=VALUE`, and `--patch FILE`. Fields are checked against the schema of JobSet."""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from podrun.runtime.contract import UserError

from ...pod.errors import Mistakes
from ...yamlfile.near import near_files
from ...yamlfile.short import short
from ...yamlfile.yaml_file import parse, read_mapping, yaml_problem

_JOB = ("spec", "replicatedJobs", 0, "template", "spec")
_POD = (*_JOB, "template")
ROOTS: dict[str, tuple[str | int, ...]] = {
    "metadata": ("metadata",),
    "spec": ("spec",),
    "job": _JOB,
    "pod": _POD,
    "container": (*_POD, "spec", "containers", 0),
}
"""First words of a path, and their places in the manifest: the JobSet's own, and short ones for its Job and container."""
_SCHEMA = Path(__file__).with_name("jobset_schema.json")
_SEGMENT = re.compile(r'\.?(?:"(?P<quoted>[^"]+)"|(?P<name>[^.\[\]"=]+))|\[(?P<item>[^\[\]]*)\]')
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "number": (int, float),
    "integer or string": (int, str),
    "any": (object,),
}


@dataclass(frozen=True)
class Step:
    """One step of a path: a field of a mapping, or an item of a list."""

    key: str
    is_item: bool = False

    def __str__(self) -> str:
        if self.is_item:
            return f"[{self.key}]"
        return f'."{self.key}"' if re.search(r'[.\[\]"=]', self.key) else f".{self.key}"


Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Changes:
    """Checked changes of a manifest."""

    patch: Mapping[str, Any] = field(default_factory=dict)
    """Fields by their first words, to be merged."""
    settings: tuple[tuple[str, Steps, Any], ...] = ()
    """Words for messages, path and value of each field to be set; None removes it."""

    def apply(self, manifest: dict[str, Any]) -> None:
        """Change the manifest.

        Raises:
            UserError: lists do not have some items, or what is to be changed belongs to podrun; the message has all of them.
        """
        before = _owned(manifest)
        mistakes = Mistakes()
        for root, value in self.patch.items():
            at: Any = manifest
            for key in ROOTS[root][:-1]:
                at = at[key]
            at[ROOTS[root][-1]] = _merged(at[ROOTS[root][-1]], value)
        mistakes.check(lambda: _check_owned("--patch", before, manifest))
        mistakes.raise_any()
        for where, steps, value in self.settings:
            mistakes.check(partial(_set, where, manifest, steps, value))
            mistakes.check(partial(_check_owned, where, before, manifest))
            mistakes.raise_any()  # the next one may need what this one has removed


def read_changes(patch: Path | None, settings: Sequence[str]) -> Changes:
    """Read a patch file and settings `PATH=VALUE`. Raises UserError with all fields that a JobSet does not have."""
    mistakes = Mistakes()
    values = mistakes.check(lambda: _read_patch(patch)) if patch else None
    parsed = [mistakes.check(partial(_read_setting, text)) for text in settings]
    mistakes.raise_any()
    return Changes(values or {}, tuple(filter(None, parsed)))


def _read_setting(text: str) -> tuple[str, Steps, Any]:
    path, value = _split(text)
    where = f"--set {path}"
    steps = _steps(path)
    kind = _kind_at(where, steps)
    if len(steps) == 1:
        raise UserError(
            f"{where}: names the whole of {path}; name a field of it, or give a --patch FILE, which is merged"
        )
    if kind == "string":  # `true` and `1` are texts here, as annotations are
        return where, steps, None if value == "null" else value
    try:
        parsed = parse(value)[0]
    except yaml.YAMLError as error:
        raise UserError(f"{where}: {short(value)} is not valid YAML: {yaml_problem(error)}") from None
    if problems := [f"{where}{place}: {what}" for place, what, _ in _problems(kind, parsed)]:
        raise Mistakes(problems)
    return where, steps, parsed


def _split(text: str) -> tuple[str, str]:
    """Return the path and the value of `PATH=VALUE`; the path may have `=` in quotes or brackets. Raises UserError."""
    match = re.match(r'((?:"[^"]*"|\[[^\]]*\]|[^="\[])+)=(.*)', text, re.DOTALL)
    if match is None:
        raise UserError(f"--set {text!r}: write PATH=VALUE, such as spec.ttlSecondsAfterFinished=3600")
    return match[1], match[2]


def _steps(path: str) -> Steps:
    """Parse a path such as `pod.spec.volumes[shm].emptyDir`. Raises UserError."""
    steps, end = [], 0
    for match in _SEGMENT.finditer(path):
        if match.start() != end:
            break
        end = match.end()
        item = match["item"]
        steps.append(Step(item, True) if item is not None else Step(match["quoted"] or match["name"]))
    if end != len(path) or not steps:
        raise UserError(
            f"--set {path}: is not a path, such as pod.spec.volumes[shm].emptyDir.sizeLimit; a name with dots is in quotes: "
            """--set 'pod.metadata.annotations."example.com/team"=VALUE'"""
        )
    return tuple(steps)


# --- the schema -------------------------------------------------------------------------------------------------------------


@cache
def schema() -> Any:
    """Return the fields of a JobSet: a mapping of fields, a list of one kind of item, or the name of a type.

    A mapping whose only key is `*` has values under any name.
    """
    return json.loads(_SCHEMA.read_text(encoding="utf-8"))


def _kind_at(where: str, steps: Steps) -> Any:
    """Return the schema of the field. Raises UserError if there is none."""
    kind: Any = {root: _kind_of_root(path) for root, path in ROOTS.items()}
    for number, step in enumerate(steps):
        above = kind
        kind, problem = _kind_below(kind, step)
        if problem:
            if named := _name_with_dots(steps, number, above):
                raise UserError(f"{where}: {named}")
            before = "".join(map(str, steps[:number])).lstrip(".")
            raise UserError(f"{where}: {before or 'a JobSet'} {problem}")
    return kind


def _name_with_dots(steps: Steps, number: int, above: Any) -> str:
    """Return how to write a name with dots, such as that of an annotation, if the steps look like one; otherwise empty."""
    mapping = number - 2
    if above != "string" or mapping < 0 or "*" not in _kind_or_empty(steps[: mapping + 1]):
        return ""
    if any(step.is_item for step in steps[mapping + 1 :]):
        return ""
    before = "".join(map(str, steps[: mapping + 1])).lstrip(".")
    name = ".".join(step.key for step in steps[mapping + 1 :])
    return (
        f"{before} has names with texts; if {name} is one name, put it in quotes that the shell leaves: "
        f"--set '{before}.\"{name}\"=VALUE'"
    )


def _kind_or_empty(steps: Steps) -> Any:
    """Return the schema of a field that is there."""
    kind: Any = {root: _kind_of_root(path) for root, path in ROOTS.items()}
    for step in steps:
        kind = _kind_below(kind, step)[0]
    return kind if isinstance(kind, dict) else {}


def _kind_of_root(path: Sequence[str | int]) -> Any:
    kind = schema()
    for key in path:
        kind = kind[0] if isinstance(key, int) else kind[key]
    return kind


def _kind_below(kind: Any, step: Step) -> tuple[Any, str]:
    """Return the schema of one step below `kind`, and what is wrong with the step; empty if nothing is."""
    if kind == "any":
        return "any", ""
    if isinstance(kind, list):
        how = "[0], [NAME] of an item, or [+] for a new one"
        return (kind[0], "") if step.is_item else (None, f"is a list: write {how} before {step.key!r}")
    if not isinstance(kind, dict):
        return None, f"is of type {kind}, without fields of its own"
    if step.is_item:
        return None, f"is no list, but has fields: write .{step.key} in place of [{step.key}]"
    if "*" in kind:
        return kind["*"], ""
    if step.key in kind:
        return kind[step.key], ""
    near = difflib.get_close_matches(step.key, kind, n=1)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"its fields: {', '.join(list(kind)[:12])}{', ...' if len(kind) > 12 else ''}"
    )
    return None, f"has no field {step.key!r}; {hint}"


def _problems(kind: Any, value: Any, place: str = "", dotted: str = "") -> list[tuple[str, str, str]]:
    """Return (place, problem, dotted key) of each field of `value` that the schema does not allow."""
    if value is None or kind == "any":
        return []
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [(place, f"is a list; write [...] around {short(value)}", dotted)]
        items = enumerate(value)
        return [row for i, item in items for row in _problems(kind[0], item, f"{place}[{i}]", f"{dotted}{i}.")]
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return [(place, f"has fields, but {short(value)} has none; write {{field: value}}", dotted)]
        rows = []
        for key, item in value.items():
            below, problem = _kind_below(kind, Step(str(key)))
            rows += (
                [(place, problem, f"{dotted}{key}.")]
                if problem
                else _problems(below, item, f"{place}{Step(str(key))}", f"{dotted}{key}.")
            )
        return rows
    if (isinstance(value, bool) and kind != "boolean") or not isinstance(value, _TYPES[kind]):
        hint = f"; write it in quotes: {json.dumps(str(value).lower() if isinstance(value, bool) else str(value))}"
        is_text = kind == "string" and not isinstance(value, (dict, list))
        return [(place, f"{short(value)} is not of type {kind}{hint if is_text else ''}", dotted)]
    return []


def schema_problems(manifest: Mapping[str, Any]) -> list[str]:
    """Return a message for each field of a manifest that JobSet does not have, or whose value has another type."""
    return [f"{place.lstrip('.') or 'the manifest'}: {what}" for place, what, _ in _problems(schema(), manifest)]


# --- the manifest -----------------------------------------------------------------------------------------------------------


def _set(where: str, manifest: dict[str, Any], steps: Steps, value: Any) -> None:
    """Set the field; None removes it. Raises UserError if an item of a list on the way is missing."""
    at: Any = manifest
    for key in ROOTS[steps[0].key][:-1]:
        at = at[key]
    last: str | int = ROOTS[steps[0].key][-1]
    for step in steps[1:]:
        if isinstance(last, str) and at.get(last) is None:
            if value is None:
                return
            at[last] = [] if step.is_item else {}
        named, at = last, at[last]
        last = _index(where, at, step, named == "env") if step.is_item else step.key
    if value is not None:
        at[last] = value
        if other := _INSTEAD.get(str(last)):
            at.pop(other, None)
    elif isinstance(last, int) or last in at:
        del at[last]


_INSTEAD = {"value": "valueFrom", "valueFrom": "value"}
"""Fields of a variable of which only one may be there."""


def _index(where: str, items: list[Any], step: Step, is_env: bool) -> int:
    """Return the index of an item by its number or name, or of a new one for `+`; variables are added. Raises UserError."""
    if step.key == "+":
        items.append({})
        return len(items) - 1
    names = [str(item.get("name", "")) for item in items if isinstance(item, dict)]
    if step.key in names:
        return names.index(step.key)
    if step.key.isascii() and step.key.isdigit() and int(step.key) < len(items):
        return int(step.key)
    if is_env and not step.key.isdigit():
        items.append({"name": step.key})
        return len(items) - 1
    listed = ", ".join(filter(None, names)) or f"{len(items)} without names"
    raise UserError(f"{where}: no item {step.key!r} in the list ({listed}); [+] adds one")


_BY_OPTION = {
    "metadata.name": "give --name",
    "spec.network.subdomain": "it is the JobSet's name: give --name",
    "spec.replicatedJobs[0].name": "other fields are made of it",
    "spec.replicatedJobs[0].replicas": "the slice has it: give --slice",
    "job.completions": "the slice has it: give --slice",
    "job.parallelism": "the slice has it: give --slice",
    "job.completionMode": "processes are numbered by it",
    "pod.spec.restartPolicy": "restarts are those of the JobSet: give launch.max_restarts of the job",
    "container.name": "other fields are made of it",
    "container.command": "it is podrun's: the job comes after the options",
}
"""Fields that other fields of the JobSet are made to fit, and what to do instead of changing them."""


def _owned(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the fields that belong to podrun, by their paths; None for a field that is not there."""
    values = {path: _value_at(manifest, _steps(path)) for path in _BY_OPTION}
    env = _value_at(manifest, _steps("container.env")) or []
    named = {item.get("name"): item for item in env if isinstance(item, dict)}
    return values | {f"container.env[{name}]": item for name, item in named.items() if str(name).startswith("PODRUN_")}


def _value_at(manifest: dict[str, Any], steps: Steps) -> Any:
    at: Any = manifest
    try:
        for key in (*ROOTS[steps[0].key], *(int(step.key) if step.is_item else step.key for step in steps[1:])):
            at = at[key]
    except (KeyError, IndexError, TypeError):
        return None
    return copy.deepcopy(at)


def _check_owned(where: str, before: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Raise UserError if fields that belong to podrun are not as they were."""
    after = _owned(manifest)
    if changed := [path for path in before if after.get(path) != before[path]]:
        path = changed[0]
        why = _BY_OPTION.get(path, "podrun tells its processes by it what they are")
        raise UserError(f"{where}: changes {path}, which other parts of the JobSet must fit; {why}")


# --- the patch file ---------------------------------------------------------------------------------------------------------


def _read_patch(path: Path) -> dict[str, Any]:
    """Return the fields of a file. Raises UserError with all its mistakes."""
    values, lines = read_mapping(
        path,
        f"--patch {path}",
        "the patch",
        instead=lambda missing: near_files(missing) or "give a YAML file with fields of the JobSet",
        start=f"write fields of the JobSet, below {', '.join(ROOTS)}",
    )
    kinds = {root: _kind_of_root(at) for root, at in ROOTS.items()}
    rows = _problems(kinds, values)
    if rows:
        texts = [
            f"--patch {path}: line {lines.get(dotted.rstrip('.'), 1)}: {place.lstrip('.') or 'the file'} {what}"
            if what.startswith(("has ", "is "))
            else f"--patch {path}: line {lines.get(dotted.rstrip('.'), 1)}: {place.lstrip('.')}: {what}"
            for place, what, dotted in rows
        ]
        raise Mistakes(texts)
    return {root: value for root, value in values.items() if value is not None}


def _merged(before: Any, value: Any) -> Any:
    """Return `before` with the fields of `value`.

    Mappings are merged, mounts by their paths, lists of other named items by their names; tolerations are added, and
    other lists replaced. None removes a field.
    """
    if isinstance(before, dict) and isinstance(value, dict):
        gone = {_INSTEAD[key] for key in value if key in _INSTEAD and "name" in before}
        merged = {key: item for key, item in before.items() if value.get(key, item) is not None and key not in gone}
        if isinstance(added := value.get("tolerations"), list):  # those of podrun's nodes stay
            value = {**value, "tolerations": [*(before.get("tolerations") or []), *added]}
        return merged | {key: _merged(before.get(key), item) for key, item in value.items() if item is not None}
    if isinstance(before, list) and isinstance(value, list):
        for key in ("mountPath", "name"):
            if _have(before, key) and _have(value, key):
                new = {item[key]: item for item in value}
                items = [_merged(item, new.pop(item[key])) if item[key] in new else item for item in before]
                return [*items, *new.values()]
    return value


def _have(items: Sequence[Any], key: str) -> bool:
    return bool(items) and all(isinstance(item, dict) and key in item for item in items)
