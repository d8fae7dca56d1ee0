"""Look up keys in the JSON schema of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from pydantic import BaseModel

Location = tuple[str | int, ...]
"""Location of a pydantic error: keys, indices, and the names of union branches."""
Node = dict[str, Any]
"""A schema that is part of a JSON Schema."""


class SchemaTree:
    """The JSON schema of a model, with look-ups by key."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._schema: Node = model.model_json_schema()

    def keys_to(self, location: Location) -> list[str]:
        """Return the keys on the path to `location`, without names of union branches."""
        return self._walk(location)[0]

    def keys_at(self, location: Location) -> list[str]:
        """Return the keys of the section at `location`; if the section has several choices, the keys of the default."""
        return list(self._walk(location)[1].get("properties", {}))

    @cached_property
    def paths(self) -> list[str]:
        """Return every dotted key that a file can have."""

        def below(at: Node, prefix: str) -> Iterator[str]:
            for name, value in at.get("properties", {}).items():
                yield f"{prefix}{name}"
                inner = self._dereference(value)
                for section in (inner, *self._branches(inner)):
                    yield from below(section, f"{prefix}{name}.")

        return list(dict.fromkeys(below(self._schema, "")))

    def members(self, keys: Sequence[str]) -> dict[str, tuple[bool, str]]:
        """Return the keys of a section and of all its choices, as {key: (is it a section, description)}."""
        return {
            name: (bool(self._sections(node)), node.get("description", ""))
            for section in self._sections_at(keys)
            for name, node in section["properties"].items()
        }

    def values(self, keys: Sequence[str]) -> list[str]:
        """Return the values of a key if they are few: names of choices, constants, booleans; otherwise an empty list."""
        nodes = [section["properties"].get(keys[-1], {}) for section in self._sections_at(keys[:-1])]
        return list(dict.fromkeys(value for node in nodes for value in self._constants(node)))

    def _sections_at(self, keys: Sequence[str]) -> list[Node]:
        sections = [self._schema]
        for key in keys:
            nodes = [section["properties"][key] for section in sections if key in section["properties"]]
            sections = [inner for node in nodes for inner in self._sections(node)]
        return sections

    def _sections(self, node: Node) -> list[Node]:
        """Return the sections that a value may be: one for each choice."""
        inner = self._dereference(node)
        return [section for section in (inner, *self._branches(inner)) if "properties" in section]

    def _constants(self, node: Node) -> Iterator[str]:
        for part in (node, *node.get("anyOf", ())):
            if part.get("type") == "boolean":
                yield from ("true", "false")
            yield from (str(value) for value in part.get("enum", [part["const"]] if "const" in part else ()))
        for section in self._sections(node):
            yield from self._constants(section["properties"].get("name", {}))

    def _walk(self, location: Location) -> tuple[list[str], Node]:
        at, keys = self._schema, []
        for part in map(str, location):
            at = self._only_section(at)
            inner = self._step(at, part)
            if inner is not None and (part in at.get("properties", {}) or "items" in at or _has_named(at)):
                keys.append(part)
            elif inner is None and "anyOf" not in at and part != "[key]":
                keys.append(part)  # not in the schema: a mistake, or a user-defined key below `env` or `options`
            at = inner or at
        return keys, self._only_section(at)

    def _only_section(self, at: Node) -> Node:
        """Return the section of a key that also takes a plain value, as `precision` does; another node as it is."""
        sections = self._sections(at) if "anyOf" in at else []
        # Choices are told apart by their `name`, which is a part of the location.
        return sections[0] if len(sections) == 1 and "name" not in sections[0]["properties"] else at

    def _step(self, at: Node, part: str) -> Node | None:
        """Return the schema below `at`: of a property, an item, a value under a user's name, or the union branch `part`."""
        if part in at.get("properties", {}):
            return self._dereference(at["properties"][part])
        if "items" in at and part.isdigit():
            item = at["items"]
            return self._dereference(next(iter(self._sections(item)), item))  # `callbacks` also takes names alone
        for branch in self._branches(at):
            if branch.get("properties", {}).get("name", {}).get("const", "plugin") == part:
                return branch
        return self._dereference(at["additionalProperties"]) if _has_named(at) and part != "[key]" else None

    def _branches(self, at: Node) -> list[Node]:
        return [self._dereference(branch) for branch in [*at.get("oneOf", []), *at.get("anyOf", [])]]

    def _dereference(self, at: Node) -> Node:
        """Follow a `$ref`. For a key that may be null, return its other type."""
        if [branch for branch in at.get("anyOf", []) if branch.get("type") == "null"] and len(at["anyOf"]) == 2:
            at = next(branch for branch in at["anyOf"] if branch.get("type") != "null")
        if "$ref" in at:
            target: Node = self._schema["$defs"][at["$ref"].rpartition("/")[2]]
            return target
        return at


def _has_named(at: Node) -> bool:
    """Return whether a mapping has values under names that the user chooses, as `validation` has."""
    return isinstance(at.get("additionalProperties"), dict)
