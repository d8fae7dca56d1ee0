"""Tables of what was run: label, command, code, pod, versions, and non-default keys of train.yaml. PURE."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from podrun.runtime.config import Config
from podrun.runtime.events import EventKind
from podrun.runtime.wording import counted

from ..plan.spec import RunSpec
from ..pod.fold import fold
from ..pod.traits import reached
from ..rundir.events import Event
from ..rundir.work_tree import WorkTree
from .model import Table

_HIDDEN = "(not shown)"
_ENVIRONMENT = "launch.env"
"""Key whose values may be secrets; they are hidden, because a page is shared more easily than a run directory."""


def tables_of(run_id: str, spec: RunSpec | None, tree: WorkTree | None, events: list[Event]) -> list[Table]:
    """Return the tables of what was run. Without a spec they have only what the events tell."""
    start = next((event for event in events if event["event"] == EventKind.START), None)
    rows = [("run", run_id)]
    if spec is not None:
        label = spec.label
        rows += [("name", label.name), ("tags", ", ".join(label.tags)), ("note", label.note)]
        rows.append(("command", typed_command(spec.command)))
        rows.append(("injected faults", ", ".join(spec.inject)))
    if tree is not None:
        rows += [("commit", tree.commit), ("branch", tree.branch), ("changes since", _changes(tree))]
    if start is not None:
        hosts = list(start["hosts"])
        rows.append(("slice", f"{start['slice']}, {counted(len(hosts), 'host')} {reached(start['transport'])}"))
        rows.append(("hosts", fold(hosts)))
        rows += [("program", start["program"] or ""), ("workdir", start["workdir"])]
    versions = {event["python"] for event in events if event["event"] == EventKind.HOST and "python" in event}
    rows.append(("Python on the hosts", ", ".join(sorted(map(str, versions)))))
    tables = [Table("What was run", [(name, text) for name, text in rows if text])]
    if spec is not None and isinstance(spec.job, Config):
        tables.append(Table("Config, where it differs from the defaults", list(_changed(spec.job))))
    return tables


def typed_command(words: Sequence[str]) -> str:
    """Return the command line as it was typed, with values that may be secrets hidden; empty if unknown."""
    return shlex.join(["podrun", *map(_without_value, words)]) if words else ""


def _without_value(word: str) -> str:
    key, equals, _ = word.partition("=")
    return f"{key}={_HIDDEN}" if equals and key.startswith(_ENVIRONMENT) else word


def _changes(tree: WorkTree) -> str:
    if not tree.files:
        return "none"
    return f"{counted(tree.files, 'file')}, {tree.inserted} lines added, {tree.deleted} removed"


def _changed(section: BaseModel, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, text) for each key that differs from its section's default."""
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), f"{path}{name}"
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if key == _ENVIRONMENT:
            yield from ((f"{key}.{variable}", _HIDDEN) for variable in value)
        elif isinstance(value, BaseModel):
            if type(value) is not type(default) and (choice := getattr(value, "name", None)):
                yield f"{key}.name", _shown(choice)
            yield from _changed(value, f"{key}.")
        elif value != default and not (path and name == "name"):
            yield key, _shown(value) + ("" if field.is_required() else f"  (default: {_shown(default)})")


def _shown(value: Any) -> str:
    if isinstance(value, str) and (not value.isprintable() or value != value.strip()):
        return json.dumps(value, ensure_ascii=False)  # a line break as \n
    return "none" if value is None else str(value)
