"""Write the pages that are made from the code.

keys.md comes from the schema of train.yaml, commands.md from the help texts, files.md from the docstrings of modules,
automation.md from the declarations of events and results.

Run it by `make docs`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NotRequired, get_args, get_origin

import click

from podrun.launcher.cli.root import main
from podrun.launcher.rundir.events import Event as RunEvent
from podrun.launcher.rundir.run_summary import Summary
from podrun.launcher.sweep.events import EVENTS as SWEEP_EVENTS
from podrun.runtime.config import train_schema
from podrun.runtime.config.task import TASKS

Node = dict[str, Any]
"""A part of a JSON schema."""

_WIDTH = 100  # columns of the help texts
FOLDER = Path(__file__).parent

_HEAD = """\
# Keys of train.yaml

<!-- Written by `make docs` from the schema in runtime/config: change the descriptions there. -->

Every key, what it may be, and what it is if you do not give it. A job needs `batch_size`, and `steps` or `epochs`. On the
command line a key is its path, as in `optimizer.learning_rate=1e-3`. `podrun schema` prints the same for an editor.
"""

_BY_TASK = """\
A section that is not given, or has no `name`, is filled in by the task:

| task | model | data | optimizer | batch_size |
|---|---|---|---|---|
"""


def pages() -> dict[str, str]:
    """Return the text of each page that is made from the code, by the name of its file in docs/."""
    return {
        "keys.md": _Keys(train_schema()).page(),
        "commands.md": _commands(),
        "files.md": _files(),
        "automation.md": _automation(),
    }


_COMMANDS = """\
# Commands

<!-- Written by `make docs` from the help texts in launcher/cli: change them there. -->

What `podrun COMMAND --help` prints. `podrun train.yaml` is `podrun run train.yaml`.
"""


def _commands_of(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group with their names."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command
        yield name, command


def _commands() -> str:
    """Return the page of all commands."""
    parts = [_COMMANDS]
    podrun = click.Context(main, info_name="podrun", terminal_width=_WIDTH, **main.context_settings)
    return "\n".join([*parts, *_helps(main, podrun)])


def _helps(group: click.Group, parent: click.Context) -> Iterator[str]:
    """Yield the help of each command of a group, and of those that are groups themselves."""
    for name, command in _commands_of(group):
        context = click.Context(command, parent=parent, info_name=name)
        lines = "\n".join(f"    {line}".rstrip() for line in command.get_help(context).splitlines())
        yield f"## {context.command_path}\n\n{lines}\n"
        if isinstance(command, click.Group):
            yield from _helps(command, context)


_FILES = """\
# Files

<!-- Written by `make docs` from the first sentence of each module: change it there. -->

Every file of the product with what it says of itself. [architecture.md](architecture.md) has the folders in their order.
"""


def _files() -> str:
    """Return the page of all modules, a table for each folder."""
    parts = [_FILES]
    for package in ("api", "launcher", "runtime"):
        for folder in sorted({path.parent for path in (FOLDER.parent / package).rglob("*.py")}):
            own = _first_line(folder / "__init__.py") if (folder / "__init__.py").is_file() else ""
            rows = [
                f"| `{path.name}` | {_cell(_first_line(path))} |"
                for path in sorted(folder.glob("*.py"))
                if path.name != "__init__.py"
            ]
            name = folder.relative_to(FOLDER.parent).as_posix()
            table = ["| file | |", "|---|---|", *rows, ""] if rows else []
            parts.append("\n".join([f"## `{name}/`\n", f"{own}\n", *table]))
    return "\n".join(parts)


def _first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


# --- automation ------------------------------------------------------------------------------------------------------

_AUTOMATION = """\
# Automation

<!-- Written by `make docs` from the declarations of the events: change them there. -->

For scripts and agents that run experiments: everything that podrun prints for programs. JSON is on stdout and alone
there; messages for people are on stderr. A field may be added in a
later version, so ignore those that you do not know; none is renamed or removed without a line in the changelog.

## An experiment, step by step

1. `podrun train.yaml --dry-run --json` checks a job without starting it. Exit code 2: stderr has every mistake, with
   the line and what to do.
2. `podrun sweep sweep.yaml --json` runs the trials of a [sweep](sweeps.md) and prints the events below, one JSON
   object on each line. The last line is the event `end`.
3. The same command again goes on with a sweep that was stopped, killed, or whose machine was lost. If it is complete,
   only `resume` and `end` are printed. So a program that drives a
   sweep calls the command until `is_complete` is true, or the exit code is 2.
4. `podrun status RUN --json` says how the run of a trial is; `podrun logs RUN` has its output, `podrun report RUN`
   makes its page, `podrun pull RUN` downloads checkpoints and metrics.
5. `runs/NAME/sweep.jsonl` has the same events as `--json` had, of all calls. It may be read at any time: lines are
   only appended, and a last line without its end is not complete yet.

For a single run, `podrun train.yaml --json` prints its events, and `podrun attach RUN --json` those of a run that
goes on in the background (`--detach`).

## Exit codes

Of `podrun train.yaml`, `podrun -- PROGRAM` and `podrun attach`:

{codes}
Of `podrun sweep`:

| exit code | meaning |
|---|---|
| 0 | the sweep is complete, and at least one trial was successful |
| 1 | complete, and no trial was successful; or the results could not be written; or, without `end`, as on a full disk |
| 2 | bad input, or other settings than those that the sweep was begun with: nothing was started |
| 69 | a host could not be reached before the first trial, or no part of the pod is left: the same command goes on |
| 130 | Ctrl-C (128 + signal for others): the same command goes on with the sweep |
"""


def _automation() -> str:
    """Return the page for programs that call podrun."""
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    rows = re.search(r"\| exit code \| meaning \|\n(?:\|.*\n)+", readme)
    assert rows
    parts = [
        _AUTOMATION.format(codes=rows[0].replace("[docs/", "[").replace("(docs/", "(")),
        "## Events of a sweep\n\nFields of each, and of each the `event` itself.\n",
        *(_declared(event) for event in SWEEP_EVENTS),
        "## Events of a run\n\nThose of the workers have `host` and `process` as well.\n",
        *(_declared(event) for event in get_args(RunEvent)),
        "## The state of a run\n\n`podrun status RUN --json` and each element of `podrun ps --json`:\n",
        _fields(Summary),
        "## Commands with --json\n\n| command | |\n|---|---|",
        *_commands_with_json(main, "podrun"),
    ]
    return "\n".join(parts) + "\n"


def _declared(event: Any) -> str:
    """Return the section of an event: its kind, what it means, and its fields."""
    kind = get_args(event.__annotations__["event"])[0]
    return f"### {kind}\n\n{inspect.getdoc(event)}\n\n{_fields(event)}"


def _fields(declared: Any) -> str:
    """Return a table of the fields of a declaration."""
    texts = _texts_of(inspect.getsourcefile(declared) or "")[declared.__name__]
    rows = [
        f"| `{name}` | {_cell(_type_of(kind))} | {_cell(texts.get(name, ''))} |"
        for name, kind in declared.__annotations__.items()
        if name != "event"
    ]
    return "\n".join(["| field | type | |", "|---|---|---|", *rows, ""])


def _type_of(kind: Any) -> str:
    if get_origin(kind) is NotRequired:
        return f"{_type_of(get_args(kind)[0])}, may be missing"
    plain = kind.__origin__ if hasattr(kind, "__metadata__") else kind
    text = plain.__name__ if isinstance(plain, type) and not get_args(plain) else str(plain)
    text = re.sub(r"(typing\.)?Annotated\[([\w\[\], |]+?), '[^']*'\]", r"\2", text).replace("typing.", "")
    return re.sub(r"Optional\[(.*)\]$", r"\1 | null", text).replace("None", "null")


@cache
def _texts_of(file: str) -> dict[str, dict[str, str]]:
    """Return the text below each field of each class of a file, with those of its bases in the same file."""
    texts: dict[str, dict[str, str]] = {}
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        texts[node.name] = {}
        for base in node.bases:
            texts[node.name] |= texts.get(ast.unparse(base), {})
        for field, below in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                texts[node.name][ast.unparse(field.target)] = inspect.cleandoc(str(below.value.value))
    return texts


def _commands_with_json(group: click.Group, path: str) -> Iterator[str]:
    """Yield a row for each command that prints JSON."""
    for name, command in _commands_of(group):
        if isinstance(command, click.Group):
            yield from _commands_with_json(command, f"{path} {name}")
        for option in command.params:
            if "--json" in option.opts and isinstance(option, click.Option):
                yield f"| `{path} {name} --json` | {_cell(option.help or '')} |"


class _Keys:
    """The page of all keys."""

    def __init__(self, schema: Node) -> None:
        self._schema = schema
        self._sections = {
            key: branches for key, node in schema["properties"].items() if (branches := self._branches(node))
        }

    def page(self) -> str:
        parts = [_HEAD, "## The job\n", self._table(self._schema), _by_task()]
        for key, branches in self._sections.items():
            parts.append(f"## {key}\n")
            if len(branches) == 1:
                parts += self._section(branches[0])
            else:
                parts += self._choices(key, branches, "###")
        return "\n".join(parts)

    def _choices(self, key: str, branches: list[Node], marks: str) -> Iterator[str]:
        """Yield the parts about a section of which one choice is taken by its `name`."""
        yield f"`{key}: NAME` is short for `{key}: {{name: NAME}}`.\n"
        for branch in branches:
            yield f"{marks} {key}: {_name(branch) or 'package.module:attribute'}\n"
            yield from self._section(branch)

    def _section(self, section: Node) -> Iterator[str]:
        yield f"{section['description']}\n"
        if set(section["properties"]) > {"name"} or not _name(section):
            yield self._table(section)
        shown: dict[tuple[str, ...], str] = {}  # key by the names of its choices
        for key, node in section["properties"].items():
            inner = self._branches(node)
            names = tuple(_name(branch) for branch in inner)
            if len(inner) == 1:
                yield f"`{key}`: {inner[0]['description']}\n"
                yield self._table(inner[0], f"{key}.")
            elif inner and names in shown:
                yield f"`{key}` is a choice like `{shown[names]}`, with the same keys.\n"
            elif inner:
                shown[names] = key
                yield f"`{key}` is one of:\n"
                yield "\n".join(f"- `{_name(branch)}`: {branch['description']}" for branch in inner) + "\n"
                for branch in inner:
                    if set(branch["properties"]) > {"name"}:
                        yield f"`{key}: {_name(branch)}`\n"
                        yield self._table(branch, f"{key}.")

    def _table(self, section: Node, prefix: str = "") -> str:
        rows = ["| key | values | default | meaning |", "|---|---|---|---|"]
        for key, node in section["properties"].items():
            if "const" in node:  # the `name` that stands in the heading
                continue
            needed = key in section.get("required", [])
            default = "required" if needed else _default(node)
            rows.append(f"| `{prefix}{key}` | {self._values(key, node)} | {default} | {_cell(node['description'])} |")
        return "\n".join(rows) + "\n"

    def _values(self, key: str, node: Node) -> str:
        """Return what the key may be, in words."""
        if branches := self._branches(node):
            names = [f"`{name}`" for branch in branches if (name := _name(branch))]
            if key in self._sections:
                return f"[section](#{key})"
            return _cell(" or ".join(names)) or "section"
        parts = [_kind(part) for part in node.get("anyOf", [node])]
        return _cell(" or ".join(parts))

    def _branches(self, node: Node) -> list[Node]:
        """Return the sections that a key may be; none if it is a value."""
        if "$ref" in node:
            target: Node = self._schema["$defs"][node["$ref"].rpartition("/")[2]]
            return [target] if "properties" in target else []
        return [branch for part in (*node.get("oneOf", ()), *node.get("anyOf", ())) for branch in self._branches(part)]


def _kind(node: Node) -> str:
    """Return one type, with its limits."""
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return " or ".join(f"`{value}`" for value in node["enum"])
    match node.get("type", "section"):
        case "array":
            items = node.get("prefixItems") or node["items"].get("anyOf") or [node["items"]]
            if "enum" in items[0]:
                return f"list of {_kind(items[0])}"
            inner = dict.fromkeys(_kind(item) for item in items)
            return "list of " + " or ".join(kind.replace(" ", "s ", 1) if " " in kind else f"{kind}s" for kind in inner)
        case "boolean":
            return "`true` or `false`"
        case "null":
            return "`null`"
        case "object":
            return "mapping"
        case "string":
            return "path" if node.get("format") == "path" else "text"
        case kind:
            return "".join((str(kind), *_limits(node)))


def _limits(node: Node) -> Iterator[str]:
    signs = {"exclusiveMinimum": "above", "minimum": "from", "exclusiveMaximum": "below", "maximum": "to"}
    for key, word in signs.items():
        if key in node:
            yield f" {word} {node[key]}"


def _default(node: Node) -> str:
    value = node.get("default")
    if isinstance(value, dict) and "$ref" in node:  # a section: its keys have defaults of their own
        return ""
    if isinstance(value, dict) and "name" in value:
        value = value["name"]
    plain = isinstance(value, str) and value.replace("_", "").isalnum()
    return _cell(f"`{value if plain else json.dumps(value)}`")


def _name(section: Node) -> str:
    return str(section["properties"].get("name", {}).get("const", ""))


def _by_task() -> str:
    rows = [
        f"| `{name}` | `{task.model}` | `{task.data}` | `{task.optimizer}` | {task.batch_size or 'required'} |\n"
        for name, task in TASKS.items()
    ]
    return _BY_TASK + "".join(rows)


def _cell(text: str) -> str:
    """Return the text as it can stand in a table."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"wrote {FOLDER / name}")
